package scenario

import (
	"cmp"
	"encoding/json"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// pass is one look at every pending pod. It reads the cluster at its start and updates that with its own bindings.
type pass struct {
	*cluster
	ledgers map[*spread]*ledger
	// free is what is left on each node.
	free map[string]corev1.ResourceList
}

// ledger is the input of the model: the plan of a spread, and the slots that are taken or claimed.
type ledger struct {
	plan  subset.Plan
	tally *subset.Tally
}

func (c *cluster) newPass() *pass {
	p := &pass{cluster: c, ledgers: map[*spread]*ledger{}, free: map[string]corev1.ResourceList{}}
	for _, node := range c.nodes {
		p.free[node.Name] = node.Status.Allocatable.DeepCopy()
	}
	for _, pod := range c.pods {
		if pod.Spec.NodeName != "" && subset.IsActive(pod) {
			p.occupy(pod.Spec.NodeName, pod)
		}
	}
	observed := c.observe()
	for _, s := range c.spreads {
		p.ledgers[s] = &ledger{plan: s.policy.Plan(c.replicasOf(s)), tally: s.policy.Count(observed[s], s.Name)}
	}
	for _, pod := range c.pending() {
		if s := c.spreadOf(pod); s != nil {
			p.ledgers[s].tally.Add(s.scopeOf(pod), p.held(pod, s))
		}
	}
	return p
}

// observe lists the active pods of every spread.
func (c *cluster) observe() map[*spread][]subset.Pod {
	observed := map[*spread][]subset.Pod{}
	for _, pod := range c.pods {
		if s := c.spreadOf(pod); s != nil && subset.IsActive(pod) {
			observed[s] = append(observed[s], subset.Observe(pod, c.nodesByName[pod.Spec.NodeName]))
		}
	}
	return observed
}

func (s *spread) scopeOf(pod *corev1.Pod) string { return s.policy.ScopeOf(subset.RevisionOf(pod)) }

// pending are the pods without a node, oldest first.
func (c *cluster) pending() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range c.pods {
		if pod.Spec.NodeName == "" && subset.IsActive(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// schedule tries to place one pending pod. The model chooses the subset and the nodes decide whether it fits. It returns true if the pod was bound.
func (p *pass) schedule(pod *corev1.Pod) bool {
	s := p.spreadOf(pod)
	if s == nil {
		p.move(pod, nil, subset.None)
		node := p.pickNode(pod, &subset.Subset{})
		if node == nil {
			return false
		}
		p.bind(pod, node)
		return true
	}
	ledger := p.ledgers[s]
	candidate := subset.Candidate{}
	if held := p.held(pod, s); held != subset.None {
		candidate.Holds, candidate.Claim, candidate.Behind = candidate.Holds.With(held), held, p.behind(pod, s, held)
	}
	for {
		verdict := s.policy.Admit(&ledger.plan, ledger.tally.Kept(s.scopeOf(pod)), candidate)
		if !verdict.Allowed() {
			p.move(pod, s, subset.None)
			return false
		}
		in := &subset.Subset{}
		if verdict.Subset != subset.None {
			in = &s.policy.Subsets[verdict.Subset]
		}
		if node := p.pickNode(pod, in); node != nil {
			p.move(pod, s, subset.None)
			ledger.tally.Add(s.scopeOf(pod), verdict.Subset)
			p.record(pod, s, verdict.Subset, ledger.tally.Kept(s.scopeOf(pod)).At(verdict.Subset))
			p.bind(pod, node)
			return true
		}
		if s.policy.Strategy == v1alpha1.AdaptiveScheduleStrategy && verdict.Subset != subset.None {
			candidate.Closed = candidate.Closed.With(verdict.Subset)
			continue
		}
		p.move(pod, s, verdict.Subset)
		return false
	}
}

// held is the subset that the pending pod claims in the spread, or None.
func (c *cluster) held(pod *corev1.Pod, s *spread) int {
	name, claims := c.claims[pod.UID]
	if !claims {
		return subset.None
	}
	return s.policy.Index(name)
}

// behind counts the claims of younger pods in the subset that the pod claims.
func (p *pass) behind(pod *corev1.Pod, s *spread, held int) int32 {
	var count int32
	younger := false
	for _, other := range p.pods {
		switch {
		case other == pod:
			younger = true
		case younger && other.Spec.NodeName == "" && p.spreadOf(other) == s && p.held(other, s) == held && s.scopeOf(other) == s.scopeOf(pod):
			count++
		}
	}
	return count
}

// move gives up the pod's claim and claims another subset. None claims nothing.
func (p *pass) move(pod *corev1.Pod, s *spread, to int) {
	if s == nil {
		// Its spread is gone, with the tally that counted the claim.
		delete(p.claims, pod.UID)
		return
	}
	if from := p.held(pod, s); from != to {
		tally, scope := p.ledgers[s].tally, s.scopeOf(pod)
		tally.Remove(scope, from)
		tally.Add(scope, to)
		p.changes++
	}
	if to == subset.None {
		delete(p.claims, pod.UID)
	} else {
		p.claims[pod.UID] = s.policy.Subsets[to].Name
	}
}

// pickNode is the node of the subset that takes the pod, or nil. Of the nodes that the subset prefers most, it is the one with the most room for
// pods.
func (p *pass) pickNode(pod *corev1.Pod, in *subset.Subset) *corev1.Node {
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	requests := requestsOf(pod)
	var best *corev1.Node
	for _, node := range p.nodes {
		if node.Spec.Unschedulable || in.Fits(node, pod.Spec.Tolerations) != v1alpha1.ReasonAdmitted || !covers(p.free[node.Name], requests) {
			continue
		}
		// An affinity that does not parse selects no node. The API server would refuse it.
		if matches, err := affinity.Match(node); err != nil || !matches {
			continue
		}
		if best == nil || cmp.Or(
			cmp.Compare(in.Preference(node), in.Preference(best)),
			cmp.Compare(p.roomForPods(node), p.roomForPods(best))) > 0 {
			best = node
		}
	}
	return best
}

func (p *pass) roomForPods(node *corev1.Node) int64 {
	free := p.free[node.Name][corev1.ResourcePods]
	return free.Value()
}

// onePod is what a pod takes of a node's limit of pods.
var onePod = resource.MustParse("1")

// requestsOf a pod, including the pod itself as one of the node's pods.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	requests[corev1.ResourcePods] = onePod
	return requests
}

func covers(free, requests corev1.ResourceList) bool {
	for name, request := range requests {
		left := free[name]
		if request.Cmp(left) > 0 {
			return false
		}
	}
	return true
}

func (p *pass) occupy(node string, pod *corev1.Pod) {
	free := p.free[node]
	for name, request := range requestsOf(pod) {
		left := free[name]
		left.Sub(request)
		free[name] = left
	}
}

// record writes what the Binding of a spread's pod would write. The pod is the ordinal-th of its subset.
func (p *pass) record(pod *corev1.Pod, s *spread, in int, ordinal int32) {
	matched := v1alpha1.MatchedSubset{Name: s.Name, UID: string(pod.UID)}
	if in != subset.None {
		chosen := &s.policy.Subsets[in]
		matched.Subset = chosen.Name
		for key, value := range chosen.Metadata.Annotations {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value)
		}
		for key, value := range chosen.Metadata.Labels {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, key, value)
		}
		metav1.SetMetaDataLabel(&pod.ObjectMeta, v1alpha1.SubsetLabel, chosen.Name)
	}
	text, err := json.Marshal(matched)
	if err != nil {
		// Three strings always encode.
		panic(err)
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.MatchedAnnotation, string(text))
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.PodDeletionCostAnnotation, strconv.Itoa(int(s.policy.DeletionCost(in, ordinal))))
}

func (p *pass) bind(pod *corev1.Pod, node *corev1.Node) {
	pod.Spec.NodeName = node.Name
	p.occupy(node.Name, pod)
	p.changes++
}
