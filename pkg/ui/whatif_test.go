package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// askPage sends a request from an address.
func askPage(ctx context.Context, page *Page, method, path, from string, header ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequestWithContext(ctx, method, path, nil)
	request.Host, request.RemoteAddr = "localhost:8900", from
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer := httptest.NewRecorder()
	page.Handler().ServeHTTP(answer, request)
	return answer
}

const (
	ofPod    = "/explain?namespace=shop&pod=a"
	ofSpread = "/simulate?namespace=shop&spread=web-spread&replicas="
	here     = "127.0.0.1:1234"
)

// asking is a page that shows pod a and spread web-spread.
func asking(t *testing.T) *Page {
	t.Helper()
	page, _ := newPage(t, newFixture(t, spread("own"), pod("a", "", "")))
	return page
}

func TestWhatABrowserMayAsk(t *testing.T) {
	for name, tc := range map[string]struct {
		path, method string
		header       []string
		gives        string
		fails        error
		wantCode     int
		want, asked  string
	}{
		"about a pod":                    {path: ofPod, gives: `{"why": "<b>"}`, wantCode: http.StatusOK, want: `{"why": "<b>"}`, asked: "shop/a"},
		"about a spread":                 {path: ofSpread + "7", gives: `[]`, wantCode: http.StatusOK, want: "[]", asked: "shop/web-spread 7"},
		"about no replicas":              {path: ofSpread + "0", gives: `[]`, wantCode: http.StatusOK, want: "[]", asked: "shop/web-spread 0"},
		"about most replicas":            {path: ofSpread + "5000", gives: `[]`, wantCode: http.StatusOK, want: "[]", asked: "shop/web-spread 5000"},
		"about too many replicas":        {path: ofSpread + "5001", wantCode: http.StatusBadRequest, want: `replicas: "5001" is not a number from 0 to 5000`},
		"about fewer than no replicas":   {path: ofSpread + "-1", wantCode: http.StatusBadRequest, want: `"-1" is not a number`},
		"about no number":                {path: ofSpread, wantCode: http.StatusBadRequest, want: `"" is not a number`},
		"about a pod that is not shown":  {path: "/explain?namespace=kube-system&pod=a", wantCode: http.StatusNotFound, want: "this page shows no pod kube-system/a"},
		"about a flag":                   {path: "/explain?namespace=shop&pod=--kubeconfig=/etc/shadow", wantCode: http.StatusNotFound, want: "this page shows no pod"},
		"about a spread not shown":       {path: "/simulate?namespace=shop&spread=x&replicas=1", wantCode: http.StatusNotFound, want: "this page shows no spread shop/x"},
		"for its head":                   {path: ofPod, method: http.MethodHead, wantCode: http.StatusOK},
		"with another method":            {path: ofPod, method: http.MethodPost, wantCode: http.StatusMethodNotAllowed, want: "read-only"},
		"from another page":              {path: ofPod, header: []string{"Sec-Fetch-Site", "cross-site"}, wantCode: http.StatusForbidden, want: "only the page itself"},
		"and get an error":               {path: ofPod, fails: errors.New("<script>alert(1)</script>"), wantCode: http.StatusBadGateway, want: "<script>alert(1)</script>\n", asked: "shop/a"},
		"and get a part of a long error": {path: ofPod, fails: errors.New(strings.Repeat("x", 1<<20)), wantCode: http.StatusBadGateway, want: "xxx", asked: "shop/a"},
		"and get no JSON":                {path: ofPod, gives: "<html>", wantCode: http.StatusBadGateway, want: "is not JSON", asked: "shop/a"},
		"and get too much":               {path: ofPod, gives: `"` + strings.Repeat("x", 1<<20) + `"`, wantCode: http.StatusBadGateway, want: "too long", asked: "shop/a"},
	} {
		t.Run(name, func(t *testing.T) {
			page, asked := asking(t), ""
			page.explain = func(_ context.Context, namespace, pod string) ([]byte, error) {
				asked = namespace + "/" + pod
				return []byte(tc.gives), tc.fails
			}
			page.simulate = func(_ context.Context, namespace, spread string, replicas int32) ([]byte, error) {
				asked = fmt.Sprintf("%s/%s %d", namespace, spread, replicas)
				return []byte(tc.gives), tc.fails
			}
			method := tc.method
			if method == "" {
				method = http.MethodGet
			}
			answer := askPage(t.Context(), page, method, tc.path, here, tc.header...)
			if answer.Code != tc.wantCode || !strings.Contains(answer.Body.String(), tc.want) {
				t.Errorf("%d %.200s, want %d %s", answer.Code, answer.Body, tc.wantCode, tc.want)
			}
			if asked != tc.asked {
				t.Errorf("asked about %q, want %q", asked, tc.asked)
			}
			kind, wantKind := answer.Header().Get("Content-Type"), "text/plain; charset=utf-8"
			if tc.wantCode == http.StatusOK {
				wantKind = "application/json"
			}
			if method != http.MethodHead && (kind != wantKind || answer.Header().Get("X-Content-Type-Options") != "nosniff") {
				t.Errorf("sent as %q, want %q", kind, wantKind)
			}
			if answer.Body.Len() > 3<<10 {
				t.Errorf("%d bytes are sent", answer.Body.Len())
			}
		})
	}
}

func TestNothingCanBeAskedWithoutWhatIf(t *testing.T) {
	page := asking(t)
	for _, path := range []string{ofPod, ofSpread + "1"} {
		if answer := askPage(t.Context(), page, http.MethodGet, path, here); answer.Code != http.StatusNotImplemented || !strings.Contains(answer.Body.String(), "berth-whatif") {
			t.Errorf("%s: %d %s", path, answer.Code, answer.Body)
		}
	}
}

func TestAClientGetsOneAnswerAtATimeAndAllTwo(t *testing.T) {
	page := asking(t)
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		page.explain = func(ctx context.Context, _, _ string) ([]byte, error) {
			select {
			case <-finish:
				return []byte("{}"), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		ctx, leave := context.WithCancel(t.Context())
		var codes sync.Map
		ask := func(ctx context.Context, from string) {
			codes.Store(from, askPage(ctx, page, http.MethodGet, ofPod, from).Code)
		}
		expect := func(from string, want int) {
			t.Helper()
			synctest.Wait()
			if got, _ := codes.Load(from); got != want {
				t.Errorf("%s: %v, want %d", from, got, want)
			}
		}
		go ask(ctx, "10.0.0.1:1")
		synctest.Wait()
		ask(t.Context(), "10.0.0.1:2")
		expect("10.0.0.1:2", http.StatusTooManyRequests)
		go ask(t.Context(), "10.0.0.2:1")
		synctest.Wait()
		ask(t.Context(), "10.0.0.3:1")
		expect("10.0.0.3:1", http.StatusTooManyRequests)
		leave() // which makes room for others
		expect("10.0.0.1:1", http.StatusBadGateway)
		go ask(t.Context(), "10.0.0.1:3")
		synctest.Wait()
		close(finish)
		expect("10.0.0.1:3", http.StatusOK)
		expect("10.0.0.2:1", http.StatusOK)
	})
}

func TestAnAnswerThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	page := asking(t)
	synctest.Test(t, func(t *testing.T) {
		page.explain = func(ctx context.Context, _, _ string) ([]byte, error) {
			<-ctx.Done()
			return nil, errors.New("killed")
		}
		if answer := askPage(t.Context(), page, http.MethodGet, ofPod, here); answer.Code != http.StatusGatewayTimeout || !strings.Contains(answer.Body.String(), "within 30s") {
			t.Errorf("%d %s", answer.Code, answer.Body)
		}
	})
}
