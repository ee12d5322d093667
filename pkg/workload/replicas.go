package workload

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// ErrNeedsScale is returned by Replicas for a kind whose replicas only its scale subresource tells.
var ErrNeedsScale = errors.New("the replicas of this kind are told by its scale subresource")

// Replicas is how many pods that filter picks the workload asks for. With replicasPathList it is the sum at those paths, for every kind;
// without, it is what a Deployment, ReplicaSet, StatefulSet or Job says, and ErrNeedsScale for any other kind. A nil filter picks
// all pods.
func Replicas(object runtime.Object, filter *v1alpha1.TargetFilter) (int32, error) {
	if filter != nil && len(filter.ReplicasPathList) > 0 {
		fields, err := fieldsOf(object)
		if err != nil {
			return 0, err
		}
		return AtPaths(fields, filter.ReplicasPathList)
	}
	switch w := object.(type) {
	case *appsv1.Deployment:
		return OfDeployment(w), nil
	case *appsv1.ReplicaSet:
		return OfReplicaSet(w), nil
	case *appsv1.StatefulSet:
		return OfStatefulSet(w), nil
	case *batchv1.Job:
		return OfJob(w), nil
	default:
		return 0, ErrNeedsScale
	}
}

func fieldsOf(object runtime.Object) (map[string]any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		return u.Object, nil
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("reading the fields of a %T: %w", object, err)
	}
	return fields, nil
}

// OfDeployment is spec.replicas; nil means 1.
func OfDeployment(d *appsv1.Deployment) int32 { return orOne(d.Spec.Replicas) }

// OfReplicaSet is spec.replicas; nil means 1.
func OfReplicaSet(r *appsv1.ReplicaSet) int32 { return orOne(r.Spec.Replicas) }

// OfStatefulSet is spec.replicas; nil means 1.
func OfStatefulSet(s *appsv1.StatefulSet) int32 { return orOne(s.Spec.Replicas) }

// OfJob is how many pods a Job runs at a time when it runs: spec.parallelism, nil meaning 1, and not more than spec.completions if that is set.
func OfJob(j *batchv1.Job) int32 {
	if j.Spec.Completions == nil {
		return orOne(j.Spec.Parallelism)
	}
	return min(orOne(j.Spec.Parallelism), *j.Spec.Completions)
}

// OfJobNow is how many pods a Job asks for as it stands: none if it is suspended or ends, for then its pods are deleted and nobody makes new ones, and
// no more than it has yet to complete. A Job that ends says so in a condition only once all pods are deleted; that it has failed too often shows before.
func OfJobNow(j *batchv1.Job) int32 {
	switch {
	case j.Spec.Suspend != nil && *j.Spec.Suspend, ends(j):
		return 0
	case j.Spec.Completions != nil:
		return max(min(OfJob(j), *j.Spec.Completions-j.Status.Succeeded), 0)
	default:
		return OfJob(j)
	}
}

func ends(j *batchv1.Job) bool {
	for i := range j.Status.Conditions {
		switch c := &j.Status.Conditions[i]; c.Type {
		case batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet, batchv1.JobFailed, batchv1.JobComplete:
			if c.Status == corev1.ConditionTrue {
				return true
			}
		}
	}
	return j.Spec.BackoffLimit != nil && j.Status.Failed > *j.Spec.BackoffLimit
}

// OfScale is what a scale subresource says. There nil is 0, unlike in the workloads themselves. The API server cuts the replicas of custom resources to 32
// bits, so that a number may come out negative; that is 0 as well.
func OfScale(s *autoscalingv1.Scale) int32 { return max(s.Spec.Replicas, 0) }

func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// AtPaths is the sum of the integers at dotted paths in an object, as targetFilter.replicasPathList gives them. A segment of digits
// indexes a list, or is a key where the path has come to an object. No paths sum up to 0. The error names every path that leads to no
// replicas, and what is found there.
func AtPaths(object map[string]any, paths []string) (int32, error) {
	var sum int64
	var errs []error
	for _, path := range paths {
		n, err := at(object, path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		sum += n
	}
	if len(errs) > 0 {
		return 0, errors.Join(errs...)
	}
	if sum > math.MaxInt32 {
		return 0, fmt.Errorf("%s: the sum %d is above %d", strings.Join(paths, " + "), sum, math.MaxInt32)
	}
	return int32(sum), nil
}

// at is a number of replicas, from 0 to the largest int32.
func at(object map[string]any, path string) (int64, error) {
	var value any = object
	segments := strings.Split(path, ".")
	for i, segment := range segments {
		here := strings.Join(segments[:i], ".")
		switch v := value.(type) {
		case map[string]any:
			child, ok := v[segment]
			if !ok {
				return 0, fmt.Errorf("%s: there is no %q in %s", path, segment, orObject(here))
			}
			value = child
		case []any:
			index, err := strconv.ParseUint(segment, 10, 31)
			if err != nil {
				return 0, fmt.Errorf("%s: %s is a list, and %q is not an index", path, here, segment)
			}
			if index >= uint64(len(v)) {
				return 0, fmt.Errorf("%s: %s has %d elements, and no %s", path, here, len(v), segment)
			}
			value = v[index]
		default:
			return 0, fmt.Errorf("%s: %s is %s, and has no %q", path, orObject(here), found(value), segment)
		}
	}
	n, ok := integer(value)
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0, fmt.Errorf("%s: found %s, want an integer from 0 to %d", path, found(value), math.MaxInt32)
	}
	return n, nil
}

func orObject(path string) string {
	if path == "" {
		return "the object"
	}
	return path
}

// integer reads a number as JSON decoders leave it. Decoders that know no integers leave a float64.
func integer(value any) (int64, bool) {
	switch n := value.(type) {
	case int64:
		return n, true
	case int32:
		return int64(n), true
	case int:
		return int64(n), true
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) <= math.MaxInt32
	default:
		return 0, false
	}
}

// found is a value in the words of an error.
func found(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("the string %q", v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}
