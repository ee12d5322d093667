package ui

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

var update = flag.Bool("update", false, "write the picture of the page that the README shows")

// The picture of the README, and its size in pixels.
const (
	picture       = "docs/ui.png"
	pictureWidth  = 1280
	pictureHeight = 600
)

const pictured = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  scheduleStrategy: {type: Adaptive}
  subsets:
  - {name: own, maxReplicas: 30, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [own]}]}}
  - {name: cloud, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [cloud]}]}}
---
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: batch}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: batch}
  scheduleStrategy: {whenFull: Wait}
  subsets:
  - {name: own, maxReplicas: 6, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [own]}]}}
  - {name: cloud, maxReplicas: 4, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [cloud]}]}}
`

func deployment(name string, replicas int, nodeSelector string) string {
	return fmt.Sprintf(`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      schedulerName: berth-scheduler
      nodeSelector: {%[3]s}
      terminationGracePeriodSeconds: 0
      containers: [{name: app, image: "registry.k8s.io/pause:3.10", resources: {requests: {cpu: 100m}}}]
`, name, replicas, nodeSelector)
}

// TestThePictureOfTheREADME makes what the picture shows: full subsets, pods that wait, and pods of no spread. With
// -update it writes the picture. Without, it checks that the page shows this, and that there is a picture of the right
// size. Fonts differ between machines, so it compares no pixels.
func TestThePictureOfTheREADME(t *testing.T) {
	const namespace = "shop"
	if _, err := the.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var nodes []*corev1.Node
	for i := range 20 {
		pool := "own"
		if i >= 12 {
			pool = "cloud"
		}
		nodes = append(nodes, sandbox.NewNode(fmt.Sprintf("node-%02d", i+1), "", map[string]string{"pool": pool}, nil, nil))
	}
	t.Cleanup(func() {
		if err := the.DeleteNamespace(context.Background(), namespace); err != nil {
			t.Error(err)
		}
		if err := the.DeleteNodes(context.Background(), nodes); err != nil {
			t.Error(err)
		}
	})
	if err := the.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	tab := open(t, serve(t, namespace, "0").url)
	if _, err := chromedp.Call(tab, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: pictureWidth, Height: pictureHeight, DeviceScaleFactor: 1}); err != nil {
		t.Fatal(err)
	}
	expectText(t, tab, "#state", "live")
	if err := the.ApplyYAML(t.Context(), namespace, pictured+deployment("web", 44, "")+deployment("batch", 13, "")+
		deployment("cron", 5, "pool: own")+deployment("mail", 4, "pool: cloud")); err != nil {
		t.Fatal(err)
	}
	expectLook(t, tab, `live
own 12 nodes, 41 pods:`+strings.Repeat(" 1", 36)+strings.Repeat(" _", 5)+`
cloud 8 nodes, 22 pods:`+strings.Repeat(" 2", 18)+strings.Repeat(" _", 4)+`
Waiting for a node 3: _(pending) _(pending) _(pending)
batch Ready, Deployment/batch, Fixed, 13 pods asked for
- 1 own 6 of 6, bar 100 %
- 2 cloud 4 of 4, bar 100 %
- 3 pods pending
- next 3 pods wait until a slot is free: every subset is full (whenFull: Wait)
web Ready, Deployment/web, Adaptive, 44 pods asked for
- 1 own 30 of 30, bar 100 %
- 2 cloud 14, no limit, bar 100 %
- next nothing: every pod is where it belongs
`)
	expectText(t, tab, "#counts", "20 nodes, 66 pods, 3 waiting")
	expectText(t, tab, "#reasons", "3 pods", "SubsetsFull")
	expectText(t, tab, "#lately", "pods placed in ")

	path := filepath.Join(harness.Root(), picture)
	if *update {
		if height := evaluate[int](t, tab, `document.documentElement.scrollHeight`); height > pictureHeight {
			t.Errorf("the page is %d pixels high, so its end is not in the picture", height)
		}
		content, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	readme, err := os.ReadFile(filepath.Join(harness.Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "]("+picture+")") {
		t.Errorf("the README does not show %s", picture)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if size, err := png.DecodeConfig(bytes.NewReader(content)); err != nil || size.Width != pictureWidth || size.Height != pictureHeight {
		t.Errorf("%s has %d times %d pixels, want %d times %d: %v", picture, size.Width, size.Height, pictureWidth, pictureHeight, err)
	}
}
