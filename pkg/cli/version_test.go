package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/cli/console"
)

func TestVersion(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			_, _ = w.Write([]byte(`{"gitVersion": "v1.35.4"}`))
		}
	}))
	defer server.Close()
	running := func(image string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": "berth"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "d"}}
	deployment.Spec.Template = running("ghcr.io:5000/berth-project/berth-controller:v0.3.0")
	other := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "other"}}
	cronJob := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "c"}}
	cronJob.Spec.JobTemplate.Spec.Template = running("ghcr.io:5000/berth-project/berth-descheduler@sha256:0123")

	forbidden := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if _, is := list.(*batchv1.CronJobList); is {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "cronjobs"}, "", errors.New("no"))
		}
		return c.List(ctx, list, options...)
	}}
	for name, tc := range map[string]struct {
		command versionCommand
		host    string
		objects []client.Object
		funcs   interceptor.Funcs
		connect error
		want    []string
		unread  string
	}{
		"all that runs": {host: server.URL, objects: []client.Object{deployment, other, cronJob},
			want: []string{"kubectl-berth", "API server v1.35.4", "berth-controller v0.3.0", "berth-descheduler"}},
		"what may be read":       {host: server.URL, objects: []client.Object{deployment}, funcs: forbidden, want: []string{"kubectl-berth", "API server v1.35.4", "berth-controller v0.3.0"}, unread: "CronJobs of berth-system: "},
		"Berth is not installed": {host: server.URL, want: []string{"kubectl-berth", "API server v1.35.4"}, unread: "no Deployment or CronJob of Berth"},
		"no API server":          {host: "http://127.0.0.1:1", want: []string{"kubectl-berth"}, unread: "no API server answers"},
		"no cluster":             {connect: errors.New("no context"), want: []string{"kubectl-berth"}, unread: "the cluster: no context"},
		"the client alone":       {command: versionCommand{client: true}, connect: errors.New("not asked"), want: []string{"kubectl-berth"}},
	} {
		t.Run(name, func(t *testing.T) {
			connect := func() (*console.Cluster, error) {
				cluster := clusterOf(t, tc.objects...)
				cluster.Config, cluster.WithWatch = &rest.Config{Host: tc.host}, interceptor.NewClient(cluster.WithWatch, tc.funcs)
				return cluster, tc.connect
			}
			var out, table bytes.Buffer
			tc.command.out, tc.command.output = &out, console.Output{Format: "json"}
			if err := tc.command.run(t.Context(), connect); err != nil {
				t.Fatal(err)
			}
			var got installedVersions
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			var names []string
			for i, c := range got.Components {
				if i == 0 {
					c.Version = ""
				}
				names = append(names, strings.TrimSuffix(c.Name+" "+c.Version, " "))
			}
			if diff := cmp.Diff(tc.want, names); diff != "" || !strings.Contains(strings.Join(got.Unread, "\n"), tc.unread) || (tc.unread == "") != (len(got.Unread) == 0) {
				t.Errorf("versions (-want +got):\n%snot read: %q, want %q", diff, got.Unread, tc.unread)
			}
			tc.command.out, tc.command.output = &table, console.Output{}
			if err := tc.command.run(t.Context(), connect); err != nil || !strings.HasPrefix(table.String(), "COMPONENT") || strings.Count(table.String(), "not read: ") != len(got.Unread) {
				t.Errorf("%v, printed\n%s", err, table.String())
			}
		})
	}
}
