package fit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

func class(name string, mode storagev1.VolumeBindingMode, provisioner, zone string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
	if zone != "" {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: corev1.LabelTopologyZone, Values: []string{zone}}}}}
	}
	return c
}

func claim(name, class string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	if class != "" {
		c.Spec.StorageClassName = &class
	}
	return c
}

// volumeIn is a volume in a zone, for a claim of any pod.
func volumeIn(name, class, zone string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
		Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/" + name}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}}}}}}
}

func withEphemeral(p *corev1.Pod, class string) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claim("", class).Spec}}}}}
	return p
}

func withClaim(p *corev1.Pod, name string) *corev1.Pod {
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	return p
}

// The claim of a pod that does not exist does not exist either. It is no reason to refuse the pod: the pod's claim is
// made with it.
func TestClaimsThatAreMadeWithThePod(t *testing.T) {
	const late, now = storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	byDefault := class("default", late, "csi.example.com", "zone-b")
	byDefault.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	objects := []runtime.Object{class("anywhere", late, "csi.example.com", ""), class("in-a", late, "csi.example.com", "zone-a"), class("at-once", now, "csi.example.com", ""),
		class("local", late, "kubernetes.io/no-provisioner", ""), volumeIn("disk", "local", "zone-b"), byDefault}
	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		expected []*corev1.PersistentVolumeClaim
		want     Verdict
		wantOn   string
	}{
		"an ephemeral volume that can be made anywhere": {pod: withEphemeral(pod("new", "1", ""), "anywhere"), wantOn: "a0"},
		"an ephemeral volume of one zone":               {pod: withEphemeral(pod("new", "1", ""), "default"), wantOn: "b0"},
		"the default class":                             {pod: withEphemeral(pod("new", "1", ""), ""), wantOn: "b0"},
		"a zone where the pod has no room":              {pod: withEphemeral(pod("new", "2", ""), "in-a"), want: DoesNotFit},
		"a class that makes volumes before the pod":     {pod: withEphemeral(pod("new", "1", ""), "at-once"), want: Unknown},
		"a class that does not exist":                   {pod: withEphemeral(pod("new", "1", ""), "typo"), want: DoesNotFit},
		"a claim that a controller will make":           {pod: withClaim(pod("new", "1", ""), "data-db-0"), expected: []*corev1.PersistentVolumeClaim{claim("data-db-0", "default")}, wantOn: "b0"},
		"a claim that nobody makes":                     {pod: withClaim(pod("new", "1", ""), "data-db-0"), want: DoesNotFit},
		"a volume that is there":                        {pod: withEphemeral(pod("new", "1", ""), "local"), wantOn: "b0"},
	} {
		t.Run(name, func(t *testing.T) {
			rooms, err := filters(t, objects...).Take(nil, []*corev1.Node{node("a0", "a"), node("b0", "b")})
			if err != nil {
				t.Fatal(err)
			}
			if err := rooms.Expect("ns", tc.expected); err != nil {
				t.Fatal(err)
			}
			survey, err := rooms.Survey(t.Context(), tc.pod, nil, everywhere)
			if fits := survey.Fit > 0; err != nil || fits != (tc.want == Fits) || (survey.Unknown != nil) != (tc.want == Unknown) {
				t.Errorf("the survey says %+v, %v", survey, err)
			}
			on, verdict, why := rooms.Place(t.Context(), tc.pod, nil, everywhere)
			if verdict != tc.want || on != tc.wantOn {
				t.Errorf("got %d on %q (%v), want %d on %q", verdict, on, why, tc.want, tc.wantOn)
			}
		})
	}
	t.Run("one volume serves one pod, until the next picture", func(t *testing.T) {
		f := filters(t, objects...)
		for range 2 {
			rooms, err := f.Take(nil, []*corev1.Node{node("b0", "b"), node("b1", "b")})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []Verdict{Fits, DoesNotFit} {
				if _, verdict, why := rooms.Place(t.Context(), withEphemeral(pod([]string{"one", "two"}[i], "100m", ""), "local"), nil, everywhere); verdict != want {
					t.Errorf("pod %d: got %d (%v), want %d", i, verdict, why, want)
				}
			}
		}
	})
}
