package workload

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

func TestReplicasNow(t *testing.T) {
	tests := map[string]struct {
		object runtime.Object
		want   int32
		told   bool
	}{
		"a Deployment":                      {object: &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](7)}}, want: 7, told: true},
		"a Job":                             {object: &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](3)}}, want: 3, told: true},
		"a Job that is suspended":           {object: &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](3), Suspend: ptr.To(true)}}, told: true},
		"a DaemonSet":                       {object: &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 5}}, want: 5, told: true},
		"a ReplicationController":           {object: &corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Replicas: ptr.To[int32](2)}}, want: 2, told: true},
		"one without replicas":              {object: &corev1.ReplicationController{}, want: 1, told: true},
		"an object that has a scale, maybe": {object: &unstructured.Unstructured{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, told := ReplicasNow(tc.object); got != tc.want || told != tc.told {
				t.Errorf("got %d, %t; want %d, %t", got, told, tc.want, tc.told)
			}
		})
	}
}

func TestReplicas(t *testing.T) {
	deployment := func(replicas *int32) *appsv1.Deployment {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: replicas, RevisionHistoryLimit: ptr.To[int32](4)}}
	}
	job := func(parallelism, completions *int32) *batchv1.Job {
		return &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: parallelism, Completions: completions}}
	}
	custom := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"workers": int64(3), "replicas": int64(9)}}}
	tests := map[string]struct {
		object runtime.Object
		paths  []string
		want   int32
	}{
		"a Deployment asks for its replicas":                   {object: deployment(ptr.To[int32](7)), want: 7},
		"a Deployment may ask for none":                        {object: deployment(ptr.To[int32](0)), want: 0},
		"a Deployment without replicas asks for one":           {object: deployment(nil), want: 1},
		"a ReplicaSet asks for its replicas":                   {object: &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](2)}}, want: 2},
		"a StatefulSet asks for its replicas":                  {object: &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](5)}}, want: 5},
		"a Job runs as many pods as its parallelism":           {object: job(ptr.To[int32](6), nil), want: 6},
		"a Job without parallelism runs one":                   {object: job(nil, ptr.To[int32](10)), want: 1},
		"a Job never runs more pods than it wants to complete": {object: job(ptr.To[int32](6), ptr.To[int32](4)), want: 4},
		"a Job that is suspended by parallelism 0 runs none":   {object: job(ptr.To[int32](0), ptr.To[int32](4)), want: 0},
		"paths take the place of the replicas of a known kind": {object: deployment(ptr.To[int32](7)), paths: []string{"spec.revisionHistoryLimit"}, want: 4},
		"paths are summed up for any kind":                     {object: custom, paths: []string{"spec.workers", "spec.replicas"}, want: 12},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Replicas(tc.object, tc.paths)
			if err != nil || got != tc.want {
				t.Errorf("got %d, %v; want %d", got, err, tc.want)
			}
		})
	}
	t.Run("any other kind without paths has to be asked through its scale subresource", func(t *testing.T) {
		if _, err := Replicas(custom, nil); !errors.Is(err, ErrNeedsScale) {
			t.Errorf("got %v, want ErrNeedsScale", err)
		}
	})
	t.Run("a scale without replicas is one of 0", func(t *testing.T) {
		if got, err := OfScale(&unstructured.Unstructured{}); got != 0 || err != nil {
			t.Errorf("got %d, %v, want 0", got, err)
		}
	})
	t.Run("so is one that is negative", func(t *testing.T) {
		scale := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(-1294967296)}}}
		if got, err := OfScale(scale); got != 0 || err != nil {
			t.Errorf("got %d, %v, want 0", got, err)
		}
	})
}

func TestOfJobNow(t *testing.T) {
	condition := func(kind batchv1.JobConditionType, status corev1.ConditionStatus) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: status}} }
	}
	tests := map[string]struct {
		change func(*batchv1.Job)
		want   int32
	}{
		"a Job asks for its parallelism":                  {change: func(*batchv1.Job) {}, want: 3},
		"a Job asks for no more than is left to complete": {change: func(j *batchv1.Job) { j.Spec.Completions, j.Status.Succeeded = ptr.To[int32](10), 8 }, want: 2},
		"a Job that has completed more asks for none":     {change: func(j *batchv1.Job) { j.Spec.Completions, j.Status.Succeeded = ptr.To[int32](10), 11 }, want: 0},
		"a suspended Job asks for none":                   {change: func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }, want: 0},
		"a resumed Job asks again": {change: func(j *batchv1.Job) {
			j.Spec.Suspend = ptr.To(false)
			condition(batchv1.JobSuspended, corev1.ConditionTrue)(j)
		}, want: 3},
		"a Job that is about to fail asks for none":             {change: condition(batchv1.JobFailureTarget, corev1.ConditionTrue), want: 0},
		"a Job that has failed asks for none":                   {change: condition(batchv1.JobFailed, corev1.ConditionTrue), want: 0},
		"a Job that is about to succeed asks for none":          {change: condition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue), want: 0},
		"a Job that is complete asks for none":                  {change: condition(batchv1.JobComplete, corev1.ConditionTrue), want: 0},
		"a condition that is not true ends nothing":             {change: condition(batchv1.JobFailed, corev1.ConditionFalse), want: 3},
		"a Job whose pods failed more often than they may ends": {change: func(j *batchv1.Job) { j.Spec.BackoffLimit, j.Status.Failed = ptr.To[int32](2), 3 }, want: 0},
		"and as often as they may does not end":                 {change: func(j *batchv1.Job) { j.Spec.BackoffLimit, j.Status.Failed = ptr.To[int32](2), 2 }, want: 3},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			job := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](3)}}
			tc.change(job)
			if got := ofJobNow(job); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestAtPaths(t *testing.T) {
	const object = `{
		"spec": {
			"replicas": 3,
			"none": 0,
			"huge": 2147483647,
			"tooHuge": 2147483648,
			"negative": -1,
			"fraction": 1.5,
			"text": "3",
			"null": null,
			"groups": [{"replicas": 1}, {"replicas": 5}],
			"byOrdinal": {"0": {"replicas": 8}}
		}
	}`
	tests := map[string]struct {
		paths     string
		want      int32
		wantError string
	}{
		"a dotted path leads to an integer":                 {paths: "spec.replicas", want: 3},
		"0 is a number of replicas":                         {paths: "spec.none", want: 0},
		"several paths are added":                           {paths: "spec.replicas spec.groups.0.replicas", want: 4},
		"a segment of digits indexes a list":                {paths: "spec.groups.1.replicas", want: 5},
		"a segment of digits is a key in an object":         {paths: "spec.byOrdinal.0.replicas", want: 8},
		"no path is no replicas":                            {paths: "", want: 0},
		"a missing field is named with where it is missing": {paths: "spec.worker.replicas", wantError: `spec.worker.replicas: there is no "worker" in spec`},
		"a missing first field is missing in the object":    {paths: "status.replicas", wantError: `status.replicas: there is no "status" in the object`},
		"an index past the end is an error":                 {paths: "spec.groups.2.replicas", wantError: `spec.groups.2.replicas: spec.groups has 2 elements, and no 2`},
		"a list has no names":                               {paths: "spec.groups.first.replicas", wantError: `spec.groups.first.replicas: spec.groups is a list, and "first" is not an index`},
		"a negative index is none":                          {paths: "spec.groups.-1.replicas", wantError: `"-1" is not an index`},
		"a path through a number is an error":               {paths: "spec.replicas.count", wantError: `spec.replicas.count: spec.replicas is 3, and has no "count"`},
		"an object is no number":                            {paths: "spec.byOrdinal", wantError: `spec.byOrdinal: found an object, want an integer`},
		"a list is no number":                               {paths: "spec.groups", wantError: `spec.groups: found a list, want an integer`},
		"null is no number":                                 {paths: "spec.null", wantError: `spec.null: found null, want an integer`},
		"a string is no number, even of digits":             {paths: "spec.text", wantError: `spec.text: found the string "3", want an integer`},
		"a fraction is no number of pods":                   {paths: "spec.fraction", wantError: `spec.fraction: found 1.5, want an integer`},
		"fewer than none is an error":                       {paths: "spec.negative", wantError: `spec.negative: found -1, want an integer from 0`},
		"more than an int32 holds is an error":              {paths: "spec.tooHuge", wantError: `spec.tooHuge: found 2147483648, want an integer from 0 to 2147483647`},
		"a sum of more than an int32 holds is an error":     {paths: "spec.huge spec.replicas", wantError: `spec.huge + spec.replicas: the sum 2147483650 is above 2147483647`},
		"every path that leads nowhere is named":            {paths: "spec.a spec.replicas spec.b", wantError: "spec.a: there is no \"a\" in spec\nspec.b: there is no \"b\" in spec"},
	}
	// Objects from the API server hold int64, those from encoding/json float64.
	decoders := map[string]func(t *testing.T) map[string]any{
		"from the API server": func(t *testing.T) map[string]any {
			t.Helper()
			u := &unstructured.Unstructured{}
			if err := u.UnmarshalJSON([]byte(`{"apiVersion": "v1", "kind": "Any",` + strings.TrimPrefix(object, "{"))); err != nil {
				t.Fatal(err)
			}
			return u.Object
		},
		"from plain JSON": func(t *testing.T) map[string]any {
			t.Helper()
			var fields map[string]any
			if err := json.Unmarshal([]byte(object), &fields); err != nil {
				t.Fatal(err)
			}
			return fields
		},
	}
	for from, decode := range decoders {
		for name, tc := range tests {
			t.Run(name+" "+from, func(t *testing.T) {
				got, err := AtPaths(decode(t), strings.Fields(tc.paths))
				if tc.wantError == "" && (err != nil || got != tc.want) {
					t.Errorf("got %d, %v; want %d", got, err, tc.want)
				}
				if tc.wantError != "" && (err == nil || !strings.Contains(err.Error(), tc.wantError)) {
					t.Errorf("got error %v, want one with %q", err, tc.wantError)
				}
			})
		}
	}
}
