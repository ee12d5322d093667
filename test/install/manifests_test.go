package install

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/test/harness"
)

// as converts an object to its type.
func as[T any](t *testing.T, object *unstructured.Unstructured) *T {
	t.Helper()
	var typed T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &typed, true); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
	return &typed
}

// podTemplates returns the pod templates of all components in all modes, by their origin.
func podTemplates(t *testing.T) map[string]corev1.PodTemplateSpec {
	t.Helper()
	all := map[string]corev1.PodTemplateSpec{}
	for _, dir := range []string{"manifests", "manifests/descheduler/deployment", "manifests/descheduler/job"} {
		for _, object := range kustomized(t, dir) {
			name := fmt.Sprintf("%s %s", object.GetKind(), object.GetName())
			switch object.GetKind() {
			case "Deployment":
				all[name] = as[appsv1.Deployment](t, object).Spec.Template
			case "CronJob":
				all[name] = as[batchv1.CronJob](t, object).Spec.JobTemplate.Spec.Template
			case "Job":
				all[name] = as[batchv1.Job](t, object).Spec.Template
			}
		}
	}
	if len(all) != 6 {
		t.Fatalf("%d pod templates: %v", len(all), slices.Sorted(maps.Keys(all)))
	}
	return all
}

// containerPorts returns the named ports of the pods that the selector matches, in all modes.
func containerPorts(t *testing.T, selector metav1.LabelSelector) map[string]int32 {
	t.Helper()
	matcher, err := metav1.LabelSelectorAsSelector(&selector)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]int32{}
	for _, template := range podTemplates(t) {
		if matcher.Matches(labels.Set(template.Labels)) {
			for _, port := range template.Spec.Containers[0].Ports {
				ports[port.Name] = port.ContainerPort
			}
		}
	}
	return ports
}

func TestPodsHaveAsFewPowersAsTheyNeed(t *testing.T) {
	for name, template := range podTemplates(t) {
		t.Run(name, func(t *testing.T) {
			spec := template.Spec
			if s := spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("the pod's security context is %+v", s)
			}
			if len(spec.Containers) != 1 {
				t.Fatalf("%d containers", len(spec.Containers))
			}
			container := spec.Containers[0]
			s := container.SecurityContext
			if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
				s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) != 0 {
				t.Errorf("the container's security context is %+v", s)
			}
			if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() {
				t.Errorf("it requests %v", container.Resources.Requests)
			}
			if spec.PriorityClassName == "" {
				t.Error("it has no priority class")
			}
			ports := map[string]bool{}
			for _, port := range container.Ports {
				ports[port.Name] = true
			}
			for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
				if probe != nil && !ports[probe.HTTPGet.Port.StrVal] {
					t.Errorf("a probe asks at port %q, which the container does not have", probe.HTTPGet.Port.StrVal)
				}
			}
		})
	}
}

// TestTheNetworkPoliciesLetThrough checks that the network policies allow exactly the clients that need access. The API server is not a pod that a
// selector could match, and it may have any address.
func TestTheNetworkPoliciesLetThrough(t *testing.T) {
	type rule struct {
		From  string
		Ports []int32
	}
	anyone, anyPod := "anyone", "any pod"
	want := map[string][]rule{
		"berth-scheduler":   {{anyPod, []int32{10259}}},
		"berth-controller":  {{anyone, []int32{9443}}, {anyPod, []int32{8443}}},
		"berth-united":      {{anyPod, []int32{8443}}},
		"berth-descheduler": {{anyPod, []int32{10258}}},
	}
	got := map[string][]rule{}
	for _, object := range kustomized(t, "manifests/network") {
		policy := as[networkingv1.NetworkPolicy](t, object)
		if !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
			t.Errorf("%s is also about what pods call: %v", policy.Name, policy.Spec.PolicyTypes)
		}
		ports := slices.Collect(maps.Values(containerPorts(t, policy.Spec.PodSelector)))
		for _, ingress := range policy.Spec.Ingress {
			r := rule{From: fmt.Sprintf("%+v", ingress.From)}
			if len(ingress.From) == 0 {
				r.From = anyone
			} else if len(ingress.From) == 1 && cmp.Equal(ingress.From[0], networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}) {
				r.From = anyPod
			}
			for _, port := range ingress.Ports {
				r.Ports = append(r.Ports, port.Port.IntVal)
				if !slices.Contains(ports, port.Port.IntVal) {
					t.Errorf("%s is about port %v, which its pods do not have: %v", policy.Name, port.Port, ports)
				}
			}
			got[policy.Name] = append(got[policy.Name], r)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("who may call (-want +got):\n%s", diff)
	}
}

func TestTheServiceAndThePodMonitorAskAtPortsThatAreThere(t *testing.T) {
	for _, object := range kustomized(t, "manifests/webhook") {
		if object.GetKind() != "Service" {
			continue
		}
		service := as[corev1.Service](t, object)
		ports := containerPorts(t, metav1.LabelSelector{MatchLabels: service.Spec.Selector})
		if got := service.Spec.Ports[0].TargetPort; got != intstr.FromInt32(ports["webhook"]) {
			t.Errorf("the Service's target port is %s, and the pods' is %d", got.String(), ports["webhook"])
		}
	}
	all := containerPorts(t, metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "berth"}})
	for _, object := range kustomized(t, "manifests/observe") {
		if object.GetKind() != "PodMonitor" {
			continue
		}
		endpoints, _, err := unstructured.NestedSlice(object.Object, "spec", "podMetricsEndpoints")
		if err != nil || len(endpoints) == 0 {
			t.Errorf("endpoints %v: %v", endpoints, err)
		}
		for _, endpoint := range endpoints {
			endpoint := endpoint.(map[string]any)
			name := endpoint["port"].(string)
			if all[name] == 0 {
				t.Errorf("metrics are asked for at port %q, which no pod has", name)
			}
			if honors, _ := endpoint["honorLabels"].(bool); !honors {
				t.Errorf("the namespaces of spreads and pods are lost to that of the pod with port %q", name)
			}
		}
	}
}

// TestEveryImageIsOfARelease: each image is built from the command of its name, and runs as the user of the images (TestImagesOfAReleaseRun).
func TestEveryImageIsOfARelease(t *testing.T) {
	for name, template := range podTemplates(t) {
		image := imageName(template.Spec.Containers[0].Image)
		if user := template.Spec.SecurityContext.RunAsUser; user == nil || *user != 65532 {
			t.Errorf("%s runs as user %v", name, user)
		}
		if _, err := os.Stat(filepath.Join(harness.Root(), "cmd", strings.TrimPrefix(image, "berth-"), "main.go")); err != nil {
			t.Error(err)
		}
	}
}
