package endpoint

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/utils/ptr"
)

// at is a webhook about pods that is asked at a path, of a Service unless there is a URL.
func at(path *string, url string) Webhook {
	client := &admissionregistrationv1.WebhookClientConfig{CABundle: []byte("ours"), Service: &admissionregistrationv1.ServiceReference{Path: path}}
	if url != "" {
		client.URL, client.Service = &url, nil
	}
	return Webhook{Name: "pod.berth.dev", Handler: Pods, Client: client}
}

func TestAPathIsFilledInWhereItIsMissing(t *testing.T) {
	// The first is the webhook before any path was filled in, and then what happens to it.
	tests := map[string]struct {
		before Webhook
		change func(*Webhook)
		want   bool
	}{
		"it stays":                        {before: at(nil, ""), change: func(*Webhook) {}},
		"it stays with another authority": {before: at(nil, ""), change: func(w *Webhook) { w.Client.CABundle = []byte("next") }},
		"it is replaced if somebody has taken it away":  {before: at(nil, ""), change: func(w *Webhook) { w.Client.Service.Path = nil }, want: true},
		"it is replaced if it is no path":               {before: at(nil, ""), change: func(w *Webhook) { w.Client.Service.Path = ptr.To("/") }, want: true},
		"it stays if somebody has named one":            {before: at(nil, ""), change: func(w *Webhook) { w.Client.Service.Path = ptr.To(Pods) }},
		"it stays if somebody has named a segment":      {before: at(nil, ""), change: func(w *Webhook) { w.Client.Service.Path = ptr.To("/mine" + Pods) }},
		"of a URL, it stays":                            {before: at(nil, "https://localhost:1"), change: func(*Webhook) {}},
		"of a URL, it stays if somebody has named one":  {before: at(nil, "https://localhost:1"), change: func(w *Webhook) { w.Client.URL = ptr.To("https://localhost:1" + Pods) }},
		"of a URL, it is replaced if it was taken away": {before: at(nil, "https://localhost:1"), change: func(w *Webhook) { w.Client.URL = ptr.To("https://localhost:1") }, want: true},
		"of nothing, it is nothing":                     {before: at(nil, "https://localhost:1"), change: func(w *Webhook) { w.Client.URL = nil }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := tc.before
			if !w.Fill() || w.Path() == "" {
				t.Fatalf("at first it is %q", w.Path())
			}
			tc.change(&w)
			before, _ := w.path()
			got := w.Fill()
			after, _ := w.path()
			if got != tc.want || (after != before) != tc.want {
				t.Errorf("got %t, from %q to %q", got, before, after)
			}
			if tc.want && (w.Path() == "" || HandlerOf(w.Path()) != w.Handler) {
				t.Errorf("it leads to %q", HandlerOf(w.Path()))
			}
			if w.Client.Service == nil && w.Client.URL != nil && !strings.HasPrefix(*w.Client.URL, "https://localhost:1") {
				t.Errorf("it is asked at %s", *w.Client.URL)
			}
		})
	}
}

func TestTheAPIServerTakesThePath(t *testing.T) {
	w := at(nil, "")
	w.Fill()
	if errs := webhookutil.ValidateWebhookService(nil, "namespace", "name", w.Client.Service.Path, 443); len(errs) > 0 {
		t.Error(errs)
	}
	w = at(nil, "https://localhost:1")
	w.Fill()
	if errs := webhookutil.ValidateWebhookURL(nil, *w.Client.URL, true); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestNoTwoPathsAreAlike(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		w := at(nil, "")
		w.Fill()
		if seen[w.Path()] {
			t.Fatalf("%s twice", w.Path())
		}
		seen[w.Path()] = true
	}
}

func TestWhereAPathLeads(t *testing.T) {
	for path, want := range map[string]string{
		Pods: Pods, "/x" + Evictions: Evictions,
		"": "", "/": "", "/metrics": "", "mutate-pod": "", "/a/b" + Pods: "", Pods + "/": "", Pods + "/x": "",
	} {
		if got := HandlerOf(path); got != want {
			t.Errorf("%q leads to %q, want %q", path, got, want)
		}
	}
}

// TestAWebhookIsAskedOnlyAtItsOwnHandler: a review of another kind must not come to a handler because a configuration names its path.
func TestAWebhookIsAskedOnlyAtItsOwnHandler(t *testing.T) {
	for path, want := range map[string]string{Pods: Pods, "/mine" + Pods: "/mine" + Pods, Evictions: "", "/mine" + Evictions: "", "/mine": "", "/": ""} {
		if got := at(&path, "").Path(); got != want {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
	}
}
