package workload

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// ErrNeedsScale is returned by Replicas for a kind whose replicas only its scale subresource has.
var ErrNeedsScale = errors.New("only the scale subresource of this kind has its replicas")

// Replicas is how many pods a workload asks for. With paths, those of subset.ReplicaPaths, it is the sum at those, for
// every kind. Without, it is the number of an object of a built-in kind, whatever pods of it a spread picks, and
// ErrNeedsScale for other kinds and a DaemonSet.
func Replicas(object runtime.Object, paths []string) (int32, error) {
	if len(paths) > 0 {
		fields, err := fieldsOf(object)
		if err != nil {
			return 0, err
		}
		return AtPaths(fields, paths)
	}
	if job, is := object.(*batchv1.Job); is {
		return ofJob(job), nil
	}
	if replicas := PartsOf(object).Replicas; replicas != nil {
		return ptr.Deref(*replicas, 1), nil
	}
	return 0, ErrNeedsScale
}

// ReplicasNow is how many pods an object of a built-in kind asks for as it stands: a Job none if it is suspended or
// ends, a DaemonSet as many as its status says. It is false for other kinds, of which only the scale subresource tells.
func ReplicasNow(object runtime.Object) (int32, bool) {
	switch w := object.(type) {
	case *batchv1.Job:
		return ofJobNow(w), true
	case *appsv1.DaemonSet:
		return w.Status.DesiredNumberScheduled, true
	default:
		replicas, err := Replicas(object, nil)
		return replicas, err == nil
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

// ofDeployment is spec.replicas; nil means 1.
func ofDeployment(d *appsv1.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }

// ofStatefulSet is spec.replicas; nil means 1.
func ofStatefulSet(s *appsv1.StatefulSet) int32 { return ptr.Deref(s.Spec.Replicas, 1) }

// ofJob is how many pods a Job runs at the same time: spec.parallelism, where nil means 1, but at most spec.completions
// if that is set.
func ofJob(j *batchv1.Job) int32 {
	parallelism := ptr.Deref(j.Spec.Parallelism, 1)
	return min(parallelism, ptr.Deref(j.Spec.Completions, parallelism))
}

// ofJobNow is how many pods a Job asks for now: at most as many as it still has to complete, and none if it is
// suspended or ends, because its pods are then deleted and not replaced. The condition that says a Job has ended is set
// only after all pods are deleted; failure is visible before.
func ofJobNow(j *batchv1.Job) int32 {
	switch {
	case j.Spec.Suspend != nil && *j.Spec.Suspend, ends(j):
		return 0
	case j.Spec.Completions != nil:
		return max(min(ofJob(j), *j.Spec.Completions-j.Status.Succeeded), 0)
	default:
		return ofJob(j)
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

// OfScale is spec.replicas of a scale subresource. Nil means 0 there, unlike in workloads. The API server truncates the
// replicas of custom resources to 32 bits, so a number may be negative. That counts as 0 too.
func OfScale(scale *unstructured.Unstructured) (int32, error) {
	replicas, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
	return int32(max(replicas, 0)), err
}

// AtPaths is the sum of the integers at dotted paths in an object; see subset.ReplicaPaths. A segment of digits indexes
// a list, or is a key of an object. Without paths the sum is 0. The error names every path that leads to no replicas,
// and what was found there.
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

// integer reads a number as JSON decoders return it. Some decoders return a float64 for an integer.
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

// found describes a value in an error.
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
