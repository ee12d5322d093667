package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/test/testkit"
)

func TestPauseAndResume(t *testing.T) {
	spilled := testkit.Spread(t, twoThenAny+adaptive, `{observedReplicas: 3, subsetStatuses: [{name: a}, {name: b, replicas: 3}]}`)
	spilled.Annotations = map[string]string{"other": "stays"}
	cluster := clusterOf(t, spilled)
	for _, step := range []struct {
		pauses    bool
		says      string
		isPaused  bool
		nextMoves string
	}{
		{false, "already resumed", false, "RebalanceToPreferredSubset when it has room"},
		{true, "paused", true, "but not while the spread has the annotation"},
		{true, "already paused", true, "but not while the spread has the annotation"},
		{false, "resumed", false, "RebalanceToPreferredSubset when it has room"},
	} {
		var out bytes.Buffer
		if err := (&pauseCommand{out: &out, pauses: step.pauses, dryRun: "none"}).run(t.Context(), cluster, []string{"ws/web"}); err != nil || out.String() != "workloadspread.apps.kruise.io/web "+step.says+"\n" {
			t.Errorf("%v, printed %q, want %q", err, out.String(), step.says)
		}
		now := &v1beta1.WorkloadSpread{}
		if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(spilled), now); err != nil {
			t.Fatal(err)
		}
		if r := report.Of(now, time.Now()); r.Paused != step.isPaused || !strings.Contains(r.Next, step.nextMoves) || now.Annotations["other"] != "stays" {
			t.Errorf("after %q: %+v with annotations %v", step.says, r, now.Annotations)
		}
	}
	if err := (&pauseCommand{pauses: true, dryRun: "none"}).run(t.Context(), cluster, []string{"wbe"}); err == nil || !strings.Contains(err.Error(), `no WorkloadSpread "wbe"`) {
		t.Errorf("an unknown name: %v", err)
	}
	for _, dryRun := range []string{"client", "server"} {
		var out bytes.Buffer
		now := &v1beta1.WorkloadSpread{}
		err := (&pauseCommand{out: &out, pauses: true, dryRun: dryRun}).run(t.Context(), cluster, []string{"web"})
		if err := errors.Join(err, cluster.Get(t.Context(), client.ObjectKeyFromObject(spilled), now)); err != nil || moves.IsPaused(now) || out.String() != "workloadspread.apps.kruise.io/web paused ("+dryRun+" dry run)\n" {
			t.Errorf("%v, printed %q, annotations %v", err, out.String(), now.Annotations)
		}
	}
}
