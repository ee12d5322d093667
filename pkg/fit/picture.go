package fit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// picture is what the filters see of nodes and the pods on them. Unlike the scheduler's snapshot it can be changed.
type picture struct {
	nodes  []fwk.NodeInfo
	byName map[string]fwk.NodeInfo
	// claims are how many pods use each persistent volume claim, by namespace/name.
	claims map[string]int
}

var (
	_ fwk.SharedLister      = &picture{}
	_ fwk.NodeInfoLister    = &picture{}
	_ fwk.StorageInfoLister = &picture{}
)

func newPicture() *picture {
	return &picture{byName: map[string]fwk.NodeInfo{}, claims: map[string]int{}}
}

// take takes the picture of nodes and of the pods that run on them or are nominated to.
func (p *picture) take(pods []*corev1.Pod, nodes []*corev1.Node) error {
	p.nodes, p.byName, p.claims = nil, make(map[string]fwk.NodeInfo, len(nodes)), map[string]int{}
	infos, err := cache.NewSnapshot(pods, nodes).List()
	if err != nil {
		return err
	}
	for _, info := range infos {
		if info.Node() == nil {
			continue // pods of a node that is gone
		}
		p.nodes = append(p.nodes, info)
		p.byName[info.Node().Name] = info
	}
	slices.SortFunc(p.nodes, func(a, b fwk.NodeInfo) int { return cmp.Compare(a.Node().Name, b.Node().Name) })
	for _, pod := range pods {
		p.use(pod, 1)
	}
	return nil
}

func (p *picture) use(pod *corev1.Pod, by int) {
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			p.claims[framework.GetNamespacedName(pod.Namespace, claim.ClaimName)] += by
		}
	}
}

// add puts a pod on its node.
func (p *picture) add(pod *corev1.Pod) error {
	node, err := p.Get(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return err
	}
	node.AddPodInfo(info)
	p.use(pod, 1)
	return nil
}

// remove takes a pod off its node. It is false if the pod is not there.
func (p *picture) remove(logger klog.Logger, pod *corev1.Pod) bool {
	node, found := p.byName[pod.Spec.NodeName]
	if !found || node.RemovePod(logger, pod) != nil {
		return false
	}
	p.use(pod, -1)
	return true
}

// without calls a function while pods are off their nodes, and then puts those back that were there. A pod may be nil.
func (p *picture) without(logger klog.Logger, pods []*corev1.Pod, do func() error) error {
	var removed []*corev1.Pod
	for _, pod := range pods {
		if pod != nil && p.remove(logger, pod) {
			removed = append(removed, pod)
		}
	}
	err := do()
	for _, pod := range removed {
		err = errors.Join(err, p.add(pod))
	}
	return err
}

// NodeInfos implements fwk.SharedLister.
func (p *picture) NodeInfos() fwk.NodeInfoLister { return p }

// StorageInfos implements fwk.SharedLister.
func (p *picture) StorageInfos() fwk.StorageInfoLister { return p }

// List implements fwk.NodeInfoLister.
func (p *picture) List() ([]fwk.NodeInfo, error) { return p.nodes, nil }

// HavePodsWithAffinityList implements fwk.NodeInfoLister.
func (p *picture) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return p.having(func(info fwk.NodeInfo) bool { return len(info.GetPodsWithAffinity()) > 0 }), nil
}

// HavePodsWithRequiredAntiAffinityList implements fwk.NodeInfoLister.
func (p *picture) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return p.having(func(info fwk.NodeInfo) bool { return len(info.GetPodsWithRequiredAntiAffinity()) > 0 }), nil
}

func (p *picture) having(is func(fwk.NodeInfo) bool) (nodes []fwk.NodeInfo) {
	for _, node := range p.nodes {
		if is(node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Get implements fwk.NodeInfoLister.
func (p *picture) Get(name string) (fwk.NodeInfo, error) {
	if node, found := p.byName[name]; found {
		return node, nil
	}
	return nil, fmt.Errorf("node %q is not in the picture", name)
}

// IsPVCUsedByPods implements fwk.StorageInfoLister.
func (p *picture) IsPVCUsedByPods(key string) bool { return p.claims[key] > 0 }
