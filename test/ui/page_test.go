package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

const web = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web-spread}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - name: own
    maxReplicas: 4
    requiredNodeSelectorTerm:
      matchExpressions: [{key: POOL, operator: In, values: [own]}]
  - name: cloud
    requiredNodeSelectorTerm:
      matchExpressions: [{key: POOL, operator: In, values: [cloud]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      schedulerName: berth-scheduler
      terminationGracePeriodSeconds: 0
      containers:
      - name: app
        image: registry.k8s.io/pause:3.10
        resources: {requests: {cpu: 500m}}
`

// poolLabel is a label that only the nodes of this test have, so that no group contains nodes of other tests.
func poolLabel(namespace string) string { return "pool." + namespace }

func sandboxNodes(namespace, pool string, allocatable corev1.ResourceList, count int) (nodes []*corev1.Node) {
	for i := range count {
		name := fmt.Sprintf("%s-%s-%d", namespace, pool, i+1)
		nodes = append(nodes, sandbox.NewNode(name, "", map[string]string{poolLabel(namespace): pool}, nil, allocatable))
	}
	return nodes
}

func scale(t *testing.T, namespace string, replicas int) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec": {"replicas": %d}}`, replicas)
	if _, err := the.Client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// look returns the page as a user sees it, as lines. It omits invisible elements. It shows the text of squares.
const look = `(() => {
  const text = e => e && e.checkVisibility() ? e.innerText.replace(/\s+/g, ' ').trim() : '';
  const all = (selector, within = document) => [...within.querySelectorAll(selector)].filter(e => e.checkVisibility());
  const squares = within => all('.pod[data-uid]', within).map(p => (text(p) || '_') + (p.dataset.phase === 'ready' ? '' : '(' + p.dataset.phase + ')')).sort().join(' ');
  const lines = [text(document.querySelector('#state'))];
  for (const group of all('.group')) {
    const pods = squares(group);
    if (group.dataset.group) lines.push(text(group.querySelector('h2')) + (pods ? ': ' + pods : ''));
  }
  lines.push(text(document.querySelector('#tray h2')) + ': ' + squares(document.querySelector('#tray')));
  for (const card of all('.spread')) {
    lines.push(text(card.querySelector('h3')) + ' ' + text(card.querySelector('.ready')) + ', ' + text(card.querySelector('.about')));
    for (const row of all('.subset', card)) {
      const bar = row.querySelector('.meter i').getBoundingClientRect(), track = row.querySelector('.meter').getBoundingClientRect();
      lines.push('- ' + text(row.querySelector('.swatch')) + ' ' + text(row.querySelector('.name')) + ' ' + text(row.querySelector('.kept')) +
        ', bar ' + Math.round(100 * bar.width / track.width) + ' %' + (row.querySelector('[data-over]') ? ', red' : '') + (text(row.querySelector('.waits')) ? ', ' + text(row.querySelector('.waits')) : ''));
    }
    for (const line of [text(card.querySelector('.wants')), text(card.querySelector('.next'))]) if (line) lines.push('- ' + line);
  }
  return lines.join('\n') + '\n';
})()`

func evaluate[T any](t *testing.T, tab context.Context, script string) T {
	t.Helper()
	result, err := chromedp.Run(tab, chromedp.Evaluate[T](script))
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// expectLook waits until the page looks like this.
func expectLook(t *testing.T, tab context.Context, want string) {
	t.Helper()
	var diff string
	if err := the.WaitFor(t.Context(), "the page", func(context.Context) (string, error) {
		got, err := chromedp.Run(tab, chromedp.Evaluate[string](look))
		diff = cmp.Diff(want, got)
		return diff, err
	}); err != nil {
		t.Fatalf("%v\nthe page (-want +got):\n%s", err, diff)
	}
}

// expectText waits until the visible text of an element contains all parts.
func expectText(t *testing.T, tab context.Context, selector string, parts ...string) {
	t.Helper()
	script := fmt.Sprintf(`(e => e && e.checkVisibility() ? e.innerText : '')(document.querySelector(%q))`, selector)
	if err := the.WaitFor(t.Context(), "the text of "+selector, func(context.Context) (string, error) {
		got, err := chromedp.Run(tab, chromedp.Evaluate[string](script))
		for _, part := range parts {
			if !strings.Contains(got, part) {
				return fmt.Sprintf("%q is not in %q", part, got), err
			}
		}
		return "", err
	}); err != nil {
		t.Fatal(err)
	}
}

const atThree = `live
own 2 nodes, 3 pods: 1 1 1
cloud 2 nodes, 0 pods
Waiting for a node 0:
web-spread Ready, Deployment/web, Fixed, 3 pods asked for
- 1 own 3 of 4, bar 75 %
- 2 cloud 0, no limit, bar 0 %
- next nothing: every pod is where it belongs
`

func TestAPersonSeesPodsPlacedSpillWaitAndGo(t *testing.T) {
	namespace := shop(t)
	tab := open(t, serve(t, namespace, "0").url)
	expectText(t, tab, "#where", "namespace "+namespace)
	expectLook(t, tab, withoutTrailingSpace(atThree))

	scale(t, namespace, 6)
	expectLook(t, tab, withoutTrailingSpace(`live
own 2 nodes, 4 pods: 1 1 1 1
cloud 2 nodes, 2 pods: 2 2
Waiting for a node 0:
web-spread Ready, Deployment/web, Fixed, 6 pods asked for
- 1 own 4 of 4, bar 100 %
- 2 cloud 2, no limit, bar 100 %
- next nothing: every pod is where it belongs
`))
	expectText(t, tab, "#lately", "placed in own", "web-spread: 2 pods placed in cloud")

	scale(t, namespace, 10)
	expectLook(t, tab, withoutTrailingSpace(`live
own 2 nodes, 4 pods: 1 1 1 1
cloud 2 nodes, 4 pods: 2 2 2 2
Waiting for a node 2: _(pending) _(pending)
web-spread Ready, Deployment/web, Fixed, 10 pods asked for
- 1 own 4 of 4, bar 100 %
- 2 cloud 4, no limit, bar 67 %, pods that find no node: 2; this is the first subset with quota left for them
- 2 pods pending
- next 2 pods wait for a node of cloud: with strategy Fixed none goes on to another subset
`))
	expectText(t, tab, "#reasons", "2 pods", "Insufficient cpu")

	t.Run("a pod tells about itself under the mouse", func(t *testing.T) {
		at := evaluate[[]float64](t, tab, `(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('#tray .pod[data-uid]').getBoundingClientRect())`)
		if err := chromedp.Do(tab, chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at[0], at[1])); err != nil {
			t.Fatal(err)
		}
		expectText(t, tab, "#tip", "web-", "spread\nweb-spread", "subset\nnone yet", "node\nnone yet", "phase\npending", "why\n", "Insufficient cpu")
	})
	t.Run("and with the keyboard", func(t *testing.T) {
		evaluate[bool](t, tab, `(document.querySelector('#tray .pod[data-uid]').focus(), true)`)
		if err := chromedp.Do(tab, chromedp.KeyEvent(kb.ArrowDown)); err != nil { // to the first pod of the next node that has pods
			t.Fatal(err)
		}
		expectText(t, tab, "#tip", "subset\nown", "node\n"+namespace+"-own-", "phase\nready")
		if told := evaluate[string](t, tab, `document.activeElement.getAttribute('aria-label')`); !strings.Contains(told, "subset own, node "+namespace+"-own-") {
			t.Errorf("a screen reader is told %q", told)
		}
	})

	scale(t, namespace, 3)
	expectLook(t, tab, withoutTrailingSpace(atThree))
	expectText(t, tab, "#lately", "leave cloud")
}

// TestARolloutIsNotRed has two revisions of four pods each in the subset that takes four of each revision.
func TestARolloutIsNotRed(t *testing.T) {
	namespace := shop(t)
	tab := open(t, serve(t, namespace, "0").url)
	scale(t, namespace, 4)
	expectText(t, tab, ".subset[data-subset=own] .kept", "4 of 4")
	const surge = `{"spec": {"minReadySeconds": 3600, "progressDeadlineSeconds": 7200, "strategy": {"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}},
		"template": {"metadata": {"labels": {"version": "2"}}}}}` // no old pod ends for an hour
	if _, err := the.Client.AppsV1().Deployments(namespace).Patch(t.Context(), "web", types.MergePatchType, []byte(surge), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	expectLook(t, tab, withoutTrailingSpace(`live
own 2 nodes, 8 pods: 1 1 1 1 1 1 1 1
cloud 2 nodes, 0 pods
Waiting for a node 0:
web-spread Ready, Deployment/web, Fixed, 4 pods asked for
- 1 own 4 + 4 of 4 each, bar 100 %
- 2 cloud 0 + 0, no limit, bar 0 %
- next nothing: every pod is where it belongs
`))
}

func press(t *testing.T, tab context.Context, keys ...string) {
	t.Helper()
	for _, key := range keys {
		var err error
		if key == "/" { // chromedp types a character even if the page has taken its key
			_, err = chromedp.Call(tab, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: key, Text: key})
		} else {
			err = chromedp.Do(tab, chromedp.KeyEvent(key))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPersonFindsPodsWithTheKeyboard(t *testing.T) {
	namespace := shop(t)
	tab := open(t, serve(t, namespace, "0").url)
	scale(t, namespace, 6)
	expectText(t, tab, ".subset[data-subset=cloud] .kept", "2, no limit")

	press(t, tab, "/", "subset:cloud web-")
	expectText(t, tab, "#hits", "2 pods found:\n", ", cloud, "+namespace+"-cloud-")
	if dim := evaluate[int](t, tab, `document.querySelectorAll('.pod.dim').length`); dim != 4 {
		t.Errorf("%d pods are dimmed, want those of subset own", dim)
	}
	press(t, tab, kb.Enter)
	expectText(t, tab, "#one", "web-", "subset\ncloud", "node\n"+namespace+"-cloud-", "phase\nready")
	if focused := evaluate[string](t, tab, `document.activeElement.id`); focused != "one" {
		t.Errorf("the focus is on %q, want the pod's dialog", focused)
	}
	press(t, tab, kb.Escape)
	if focused := evaluate[string](t, tab, `document.activeElement.dataset.subset`); focused != "cloud" {
		t.Errorf("the focus is on a pod of subset %q, want the pod that was explained", focused)
	}

	press(t, tab, "/", namespace+"-own-1 nothing-has-this")
	expectText(t, tab, "#hits", "no pod is found")
	press(t, tab, kb.Escape)
	if left := evaluate[string](t, tab, `[document.querySelectorAll('.pod.dim').length, document.querySelector('#hits').hidden].join()`); left != "0,true" {
		t.Errorf("dimmed pods, list hidden: %s", left)
	}
}

// TestAPersonAsksWhy finds the command that answers.
func TestAPersonAsksWhy(t *testing.T) {
	namespace := shop(t)
	tab := open(t, serveWith(t, "-n", namespace).url)
	scale(t, namespace, 6)
	expectText(t, tab, ".subset[data-subset=cloud] .kept", "2, no limit")

	// A pod can move between the look and the click, while the page draws the new pods.
	if err := the.WaitFor(t.Context(), "the details of the pod that is clicked", func(context.Context) (string, error) {
		at := evaluate[[]float64](t, tab, `(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('.pod[data-subset=cloud]').getBoundingClientRect())`)
		if err := chromedp.Do(tab, chromedp.MouseClickXY(at[0], at[1])); err != nil {
			return "", err
		}
		if shown := evaluate[string](t, tab, `document.querySelector('#one').innerText`); !strings.Contains(shown, "cloud") {
			return fmt.Sprintf("it shows %q", shown), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
	expectText(t, tab, "#one", "subset\ncloud", "kubectl berth explain web-", " -n "+namespace)
	evaluate[bool](t, tab, `(document.querySelector('#one-close').click(), true)`)
}

// TestAPersonSeesWhatHoldsTheNextMove records a move as a descheduler does, after which pods came back.
func TestAPersonSeesWhatHoldsTheNextMove(t *testing.T) {
	namespace := shop(t)
	tab := open(t, serve(t, namespace, "0").url)
	scale(t, namespace, 6)
	expectText(t, tab, ".subset[data-subset=cloud] .kept", "2, no limit")
	spreads := the.Dynamic.Resource(v1beta1.Resource).Namespace(namespace)
	patch := func(kind types.PatchType, patch string, subresources ...string) {
		t.Helper()
		if _, err := spreads.Patch(t.Context(), "web-spread", kind, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
			t.Fatal(err)
		}
	}
	patch(types.JSONPatchType, `[{"op": "replace", "path": "/spec/subsets/0/maxReplicas", "value": 6}]`)
	patch(types.MergePatchType, fmt.Sprintf(`{"status": {"moves": [{"from": "cloud", "to": "own", "reason": "EarlierSubsetHasRoom", "round": 3, "time": %q}]}}`,
		time.Now().UTC().Format(time.RFC3339)), "status")
	expectText(t, tab, ".moves", "cloud → own: EarlierSubsetHasRoom, round 3", "BackingOff holds the next, for 19:")
	expectText(t, tab, ".next", "2 pods of later subsets could be in own", "pods came back to cloud after the move", "round 3 (BackingOff)")
	first := evaluate[string](t, tab, `document.querySelector('.moves .left').innerText`)
	if err := the.WaitFor(t.Context(), "the next second of the countdown", func(context.Context) (string, error) {
		now, err := chromedp.Run(tab, chromedp.Evaluate[string](`document.querySelector('.moves .left').innerText`))
		if now == first {
			return "it is still " + first, err
		}
		return "", err
	}); err != nil {
		t.Error(err)
	}
}

// withoutTrailingSpace removes the trailing space of the empty tray.
func withoutTrailingSpace(look string) string {
	return strings.ReplaceAll(look, "node 0:\n", "node 0: \n")
}

// freePort is a port on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestThePageRecoversWhenItsServerComesBack(t *testing.T) {
	namespace := shop(t)
	port := freePort(t) // with a fixed one, the address is the same after a restart
	first := serve(t, namespace, port)
	tab := open(t, first.url)
	expectLook(t, tab, withoutTrailingSpace(atThree))

	first.interrupt(t)
	expectText(t, tab, "#state", "stale")
	expectText(t, tab, "#trouble", "Not live", "tries again by itself")

	scale(t, namespace, 1)
	serve(t, namespace, port)
	expectLook(t, tab, withoutTrailingSpace(`live
own 2 nodes, 1 pod: 1
cloud 2 nodes, 0 pods
Waiting for a node 0:
web-spread Ready, Deployment/web, Fixed, 1 pod asked for
- 1 own 1 of 4, bar 25 %
- 2 cloud 0, no limit, bar 0 %
- next nothing: every pod is where it belongs
`))
	if evaluate[bool](t, tab, `document.querySelector('#trouble').checkVisibility()`) {
		t.Error("the page still says that it is stale")
	}
}

// TestALargeClusterIsDrawnInBundles opens the page of a real server. The test sends a cluster of 5,000 nodes and 10,000 pods.
func TestALargeClusterIsDrawnInBundles(t *testing.T) {
	served, err := url.Parse(serve(t, "default", "0").url)
	if err != nil {
		t.Fatal(err)
	}
	const nodes, pods = 5000, 10000
	type thing map[string]any
	var all struct {
		Cluster string  `json:"cluster"`
		Keys    []thing `json:"keys"`
		Nodes   []thing `json:"nodes"`
		Pods    []thing `json:"pods"`
		Spreads []thing `json:"spreads"`
	}
	all.Cluster, all.Keys = "large", []thing{{"label": "pool", "values": []string{"own", "cloud"}}}
	for i := range nodes {
		all.Nodes = append(all.Nodes, thing{"name": fmt.Sprintf("node-%04d", i), "in": thing{"pool": []string{"own", "cloud"}[i/(nodes/2)]}})
	}
	podAt := func(i, node int, phase string) thing {
		return thing{"uid": fmt.Sprint(i), "namespace": "shop", "name": fmt.Sprint("web-", i), "node": fmt.Sprintf("node-%04d", node), "spread": "shop/web",
			"subset": []string{"own", "cloud"}[node/(nodes/2)], "phase": phase}
	}
	for i := range pods {
		all.Pods = append(all.Pods, podAt(i, i%nodes, "ready"))
	}
	all.Spreads = []thing{{"key": "shop/web", "order": []string{"own", "cloud"}, "of": thing{"kind": "WorkloadSpread"}, "metadata": thing{"name": "web"}, "target": "Deployment/web", "strategy": "Fixed", "ready": true, "next": "nothing"}}
	moved := struct {
		Pods []thing `json:"pods"`
	}{}
	for i := range 1000 {
		moved.Pods = append(moved.Pods, podAt(i, nodes-1, "starting"))
	}
	burst := make(chan struct{})
	proxy := httputil.NewSingleHostReverseProxy(served)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/events" {
			proxy.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		tell := func(event string, content any) {
			encoded, err := json.Marshal(content)
			if err != nil {
				t.Error(err)
			}
			fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, encoded)
			_ = http.NewResponseController(w).Flush() // a closed browser needs no flush
		}
		tell("snapshot", all)
		select {
		case <-burst:
			tell("news", moved)
		case <-r.Context().Done():
			return
		}
		<-r.Context().Done()
	}))
	t.Cleanup(front.Close) // the browser keeps a stream open, so it must close first
	tab := open(t, front.URL)
	expectText(t, tab, "#counts", "5000 nodes, 10000 pods")
	expectText(t, tab, ".group[data-group=own] h2", "2500 nodes, 5000 pods")
	if n := evaluate[int](t, tab, `document.querySelectorAll('*').length`); n > 5000 {
		t.Errorf("the page has %d elements", n)
	}

	press(t, tab, "/", "name:web-999")
	expectText(t, tab, "#hits", "11 pods found, the first 10:")
	press(t, tab, kb.Enter) // opens the bundle that has the first one
	expectText(t, tab, "#one", "web-", "kubectl berth explain web-")
	if drawn := evaluate[string](t, tab, `document.querySelector('.pod[data-uid]').dataset.pod`); !strings.HasPrefix(drawn, "web-") {
		t.Errorf("the pod that was found is not drawn: %q", drawn)
	}
	press(t, tab, kb.Escape, "/", kb.Escape)

	evaluate[bool](t, tab, `(window.drawnFor = 0, new PerformanceObserver(l => { for (const e of l.getEntries()) drawnFor += e.duration; }).observe({ type: 'longtask' }), true)`)
	close(burst)
	expectText(t, tab, ".group[data-group=cloud] h2", "2500 nodes, 6000 pods")
	if millis := evaluate[float64](t, tab, `drawnFor`); millis > 5000 {
		t.Errorf("1000 pods that move keep the page busy for %.0f ms", millis)
	}

	evaluate[bool](t, tab, `(document.querySelector('.group[data-group=own] .bundle').click(), true)`)
	expectText(t, tab, ".group[data-group=own] .node[data-node=node-0010] .pods", "1")
	if n := evaluate[int](t, tab, `document.querySelectorAll('.group[data-group=own] .node').length`); n == 0 || n > 100 {
		t.Errorf("the bundle has %d nodes", n)
	}
}

// TestThePageSaysWhenTheClusterIsSilent runs last, because it stops the API server.
func TestThePageSaysWhenTheClusterIsSilent(t *testing.T) {
	tab := open(t, serve(t, "default", "0").url)
	expectText(t, tab, "#state", "live")
	resume, err := the.Sandbox.Halt("kube-apiserver", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer resume()
	expectText(t, tab, "#trouble", "Not live", "What is shown may be old")
	resume()
	expectText(t, tab, "#state", "live")
}
