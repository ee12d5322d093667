//go:build kubernetes_1_37

package fit

import fwk "k8s.io/kube-scheduler/framework"

// HavePodsWithRequiredNonHostScopedAntiAffinityList implements fwk.NodeInfoLister.
func (p *picture) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return p.having(func(info fwk.NodeInfo) bool { return len(info.GetPodsWithRequiredNonHostScopedAntiAffinity()) > 0 }), nil
}

// PodGroupStates implements fwk.SharedLister. The filters read no pod groups; nil is what they get with the feature
// GenericWorkload off.
func (p *picture) PodGroupStates() fwk.PodGroupStateLister { return nil }

// PodGroups implements fwk.SharedLister.
func (p *picture) PodGroups() fwk.PodGroupLister { return nil }

// CompositePodGroupStates implements fwk.SharedLister.
func (p *picture) CompositePodGroupStates() fwk.CompositePodGroupStateLister { return nil }

// CompositePodGroups implements fwk.SharedLister.
func (p *picture) CompositePodGroups() fwk.CompositePodGroupLister { return nil }
