package sidecar

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// Modes of v1beta1.ResourcesPolicy.
const (
	sumMode = "sum"
	maxMode = "max"
)

// expressions are those of a policy by their fields.
func expressions(policy *v1beta1.ResourcesPolicy) map[string]string {
	e := &policy.ResourcesExpr
	return map[string]string{"limits.cpu": e.Limits.CPU, "limits.memory": e.Limits.Memory, "requests.cpu": e.Requests.CPU, "requests.memory": e.Requests.Memory}
}

func validateResourcesPolicy(c *v1beta1.SidecarContainer, path *field.Path) (errs field.ErrorList) {
	policy := c.ResourcesPolicy
	if len(c.Resources.Limits)+len(c.Resources.Requests)+len(c.Resources.Claims) > 0 {
		errs = append(errs, field.Forbidden(path, "excludes resources; keep one"))
	}
	if mode := policy.TargetContainersMode; mode != sumMode && mode != maxMode {
		errs = append(errs, field.NotSupported(path.Child("targetContainersMode"), mode, []string{sumMode, maxMode}))
	}
	if _, err := regexp.Compile(policy.TargetContainersNameRegex); err != nil {
		errs = append(errs, field.Invalid(path.Child("targetContainersNameRegex"), policy.TargetContainersNameRegex, err.Error()))
	}
	given := false
	for name, text := range expressions(policy) {
		if text == "" {
			continue
		}
		given = true
		if _, err := parseExpr(text); err != nil {
			errs = append(errs, field.Invalid(path.Child("resourcesExpr", name), text, err.Error()))
		}
	}
	if !given {
		errs = append(errs, field.Required(path.Child("resourcesExpr"), "give an expression for limits or requests, such as cpu*50%"))
	}
	return errs
}

// resourcesOf computes the resources of a sidecar from the pod's own containers and native sidecars. A limit that names
// a resource for which a target has no limit is left out: it would be one of nothing. Requests count as 0 there. The
// policy was validated.
func resourcesOf(policy *v1beta1.ResourcesPolicy, pod *corev1.Pod, own []corev1.Container) (resources corev1.ResourceRequirements, warning string) {
	names := regexp.MustCompile("^(?:" + policy.TargetContainersNameRegex + ")$")
	if policy.TargetContainersNameRegex == "" {
		names = regexp.MustCompile("")
	}
	var of []corev1.Container
	for _, c := range slices.Concat(own, pod.Spec.InitContainers) {
		if names.MatchString(c.Name) && !isInjected(&c) && (find(own, c.Name) != nil || isNative(&c)) {
			of = append(of, c)
		}
	}
	if len(of) == 0 {
		return resources, fmt.Sprintf("no container of the pod matches targetContainersNameRegex %q, so that the sidecar has no resources", policy.TargetContainersNameRegex)
	}
	limits := func(c *corev1.Container, name corev1.ResourceName) *big.Rat {
		if amount, has := c.Resources.Limits[name]; has {
			return ratOf(amount)
		}
		return nil
	}
	requests := func(c *corev1.Container, name corev1.ResourceName) *big.Rat {
		if amount, has := requestsOf(&c.Resources)[name]; has {
			return ratOf(amount)
		}
		return new(big.Rat)
	}
	compute := func(texts v1beta1.ResourceExprs, from func(*corev1.Container, corev1.ResourceName) *big.Rat) corev1.ResourceList {
		t := targets{cpu: total(policy.TargetContainersMode, of, corev1.ResourceCPU, from), memory: total(policy.TargetContainersMode, of, corev1.ResourceMemory, from)}
		list := corev1.ResourceList{}
		for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: texts.CPU, corev1.ResourceMemory: texts.Memory} {
			if text == "" {
				continue
			}
			parsed, err := parseExpr(text)
			if err != nil {
				continue
			}
			amount, err := parsed(t)
			switch {
			case err != nil:
				warning = fmt.Sprintf("%s has no result: %v", text, err)
			case amount == nil:
			case amount.Sign() < 0:
				warning = fmt.Sprintf("%s is below 0", text)
			case name == corev1.ResourceCPU:
				list[name] = *resource.NewMilliQuantity(ceil(new(big.Rat).Mul(amount, big.NewRat(1000, 1))), resource.DecimalSI)
			default:
				list[name] = *resource.NewQuantity(ceil(amount), resource.BinarySI)
			}
		}
		if len(list) == 0 {
			return nil
		}
		return list
	}
	return corev1.ResourceRequirements{Limits: compute(policy.ResourcesExpr.Limits, limits), Requests: compute(policy.ResourcesExpr.Requests, requests)}, warning
}

// total is the sum or the greatest amount of containers. Nil if one has none.
func total(mode string, of []corev1.Container, name corev1.ResourceName, from func(*corev1.Container, corev1.ResourceName) *big.Rat) *big.Rat {
	all := new(big.Rat)
	for i := range of {
		amount := from(&of[i], name)
		switch {
		case amount == nil:
			return nil
		case mode == sumMode:
			all.Add(all, amount)
		case amount.Cmp(all) > 0:
			all = amount
		}
	}
	return all
}

// ceil rounds up, and is the greatest number for all that are greater.
func ceil(r *big.Rat) int64 {
	n, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsInt64() {
		return math.MaxInt64
	}
	return n.Int64()
}
