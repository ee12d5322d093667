package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// audited counts the requests of a user in a namespace by verb and resource, from the API server's audit log. A request that failed has its code too. It does
// not count events.
func audited(t *testing.T, user, namespace string) map[string]int {
	t.Helper()
	file, err := os.Open(the.Sandbox.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	counts := map[string]int{}
	inNamespace := fmt.Appendf(nil, "%q", namespace)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), inNamespace) {
			continue // the log has hundreds of thousands of requests of other tests, and decoding them takes minutes
		}
		var entry struct {
			Stage, Verb    string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Subresource, Namespace string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			continue // the API server may still be writing the last line
		}
		ref := entry.ObjectRef
		if entry.Stage == "ResponseComplete" && entry.User.Username == user && ref.Namespace == namespace && ref.Resource != "events" {
			request := fmt.Sprintf("%s %s/%s", entry.Verb, ref.Resource, ref.Subresource)
			if code := entry.ResponseStatus.Code; code >= http.StatusBadRequest {
				request = fmt.Sprint(request, " ", code)
			}
			counts[request]++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}

// writes are the audited requests that change something.
func writes(t *testing.T, user, namespace string) map[string]int {
	t.Helper()
	counts := audited(t, user, namespace)
	maps.DeleteFunc(counts, func(request string, _ int) bool {
		verb, _, _ := strings.Cut(request, " ")
		return verb == "get" || verb == "list" || verb == "watch"
	})
	return counts
}

func TestPlacingAPodIsOneBindAndNoOtherWrite(t *testing.T) {
	const user, pods = "system:serviceaccount:berth-system:berth-scheduler", 60
	tests := map[string]struct {
		spread string
		// fits is how many pods fit into pool a.
		fits string
		// patches are the gates that are opened.
		patches int
	}{
		"Fixed":    {fmt.Sprintf(twoPools, "40"), "110", 0},
		"Adaptive": {fmt.Sprintf(twoPools, "40") + "\n  scheduleStrategy: {type: Adaptive}", "110", 0},
		"Adaptive, pods that go on because the nodes of a subset are full": {fmt.Sprintf(twoPools, "100%") + "\n  scheduleStrategy: {type: Adaptive}", "40", 0},
		"Gated": {fmt.Sprintf(twoPools, "40") + "\n  scheduleStrategy: {binding: Gated}", "110", pods},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pools(t, "a", "b")
			room := allocatable("32", "64Gi", "0")
			room[corev1.ResourcePods] = resource.MustParse(tc.fits)
			setAllocatable(t, nodeIn(t, "a"), room)
			ns := namespace(t)
			apply(t, ns, spreadHeader+"\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+tc.spread)
			apply(t, ns, deployment("web", pods, ""))
			expectPlaces(t, ns, "a=40 b=20")
			want := map[string]int{"create pods/binding": pods}
			if tc.patches > 0 {
				want["patch pods/"] = tc.patches
			}
			waitFor(t, "the audit log", func(context.Context) (string, error) {
				return cmp.Diff(want, writes(t, user, ns)), nil
			})
		})
	}
}
