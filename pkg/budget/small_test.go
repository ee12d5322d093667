package budget

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/testkit/worlds"
)

var deep = flag.Bool("deep", false, "search larger worlds, which takes hours")

const (
	// smallReplicas is how many pods the workload asks for. All but one must serve.
	smallReplicas = 3
	mustServe     = smallReplicas - 1
	// smallPods also counts the pods that replace others.
	smallPods = smallReplicas + 1
)

// troubles are how often each kind of trouble may happen in a history, and the operations that clients ask for.
type troubles struct {
	requests   int
	operations []v1beta1.Operation
	// replaced is how many pods the workload creates in place of deleted ones.
	replaced int
	// crashes of webhook replicas.
	crashes int
	// early is how often a replica reads the budget or counts pods before a request needs it. What it knows is then old when a request comes.
	early int
	// waits are times in which entries get so old that they may expire.
	waits int
	// starting is how many of the pods have not become ready yet when the history begins.
	starting int
	// failures are pods that become unready by themselves.
	failures int
	// sameTag has nodes report every image by one tag, whichever runs. So only time ends the doubt about a changed pod.
	sameTag bool
	// zones has the first pod in one subset and the others in another, each subset with its own workload. Only pods of one subset at a time may be
	// unavailable.
	zones bool
	// shared has one workload for both zones, and no pod may be unavailable. handed is how many pods the controller may hand over, so that they are replaced first.
	shared bool
	handed int
}

// zoneReplicas are how many pods the workload of each zone asks for.
var zoneReplicas = [...]int{1, smallReplicas - 1}

// small is a small world: the decisions of this package, and a model of the API server, two webhook replicas, the controller and the kubelet. Each
// replica has at most one request, reads a budget and counts pods at any time before its decision, and writes by compare-and-swap. The rules of these
// steps are those of pkg/guard and pkg/controller/budget.
type small struct {
	policy *Policy
	left   troubles
	// revision of the last write of a pod or of the budget.
	revision int
	pods     [smallPods]smallPod
	budget   smallBudget
	replicas [2]replica
	// counted is the count of the controller, zero if it has none.
	counted counted
	// listed is the ledger that the controller judges by its count.
	listed []v1beta1.LedgerEntry
	// failed is how many times a pod has become unready by itself.
	failed int
	// old are the entries that may expire.
	old []v1beta1.LedgerEntry
}

type smallPod struct {
	revision                     int
	created, ready, ending, gone bool
	// handed is true for a pod that was handed over.
	handed bool
	// spec and observed are generations. runs is the one that the containers run. 0 means that they have not run yet.
	spec, observed, runs int
	// certain is the latest spec about which time has ended the doubt.
	certain int
	// asked is true once a client has asked for an operation on the pod.
	asked bool
	// zone is 0 in a world without zones.
	zone int
}

type smallBudget struct {
	revision int
	ledger   []v1beta1.LedgerEntry
	// judged is status.ledgerRevision: the minimum revision of a count for the next decision.
	judged int
}

// counted are the pods of a list at a revision. Revision 0 means none.
type counted struct {
	revision int
	pods     [smallPods]smallPod
	// failed is how many times a pod had become unready by itself by then.
	failed int
}

// newestPod is the revision of the pod in the list that was written last.
func (c *counted) newestPod() (revision int) {
	for i := range c.pods {
		if p := &c.pods[i]; p.created && !p.gone {
			revision = max(revision, p.revision)
		}
	}
	return revision
}

type replica struct {
	known smallBudget // revision 0 means none
	count counted
	review
}

type review struct {
	operation v1beta1.Operation // empty if there is no request
	pod       int
	// reviewed is the revision of the pod in the request.
	reviewed int
	// live is true if the budget was read live for the request.
	live     bool
	approved bool
	// served is true if the pod served in the count by which the request was approved, and failed is that of the count.
	served bool
	failed int
}

func (p *smallPod) serves() bool { return p.created && p.ready && !p.ending && !p.gone }

// isCertain is true for a pod that serves and that no kubelet is about to stop.
func (p *smallPod) isCertain() bool { return p.serves() && p.runs == p.spec }

// isLive is true for a pod that the API server has, and that does not terminate.
func (p *smallPod) isLive() bool { return p.created && !p.ending && !p.gone }

func newSmall(t *testing.T, left troubles) *small {
	t.Helper()
	pub := budgetOf("max 1")
	if left.zones {
		pub.Spec.MaxUnavailable, pub.Spec.PerSubset = nil, &v1beta1.PerSubset{Label: "zone", OneAtATime: true}
	}
	if left.shared {
		pub.Spec.PerSubset.MaxUnavailable = ptr.To(intstr.FromInt32(0))
	}
	s := &small{policy: compile(t, pub), left: left, revision: 1}
	for i := range smallReplicas {
		s.pods[i] = smallPod{revision: 1, created: true, ready: true, spec: 1, observed: 1, runs: 1, certain: 1}
		if i >= smallReplicas-left.starting {
			s.pods[i] = smallPod{revision: 1, created: true, spec: 1}
		}
		if left.zones {
			s.pods[i].zone = min(i, 1)
		}
	}
	s.budget.revision = 1
	return s
}

func smallUID(i int) types.UID { return types.UID(fmt.Sprintf("p%d", i)) }

// object is the pod as the API server shows it.
func (s *small) object(p *smallPod, i int) *corev1.Pod {
	image := func(generation int) string { return fmt.Sprintf("registry/web:%d", generation) }
	runs := p.runs
	if s.left.sameTag {
		runs = 1
	}
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[p.ready]
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: string(smallUID(i)), UID: smallUID(i), Generation: int64(p.spec), ResourceVersion: strconv.Itoa(p.revision),
			Labels: map[string]string{v1beta1.ProtectedLabel: "true"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image(p.spec)}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: int64(p.observed), Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: image(runs), Ready: p.ready}}},
	}
	if p.runs == 0 {
		object.Status.Phase = corev1.PodPending
	}
	if p.ending {
		object.DeletionTimestamp = &metav1.Time{}
	}
	return object
}

// observe is the pod as a process counts it. The process has seen the pod before, longer ago than a doubt lasts if the doubt has ended.
func (s *small) observe(p *smallPod, i int) Pod {
	begin, doubts, object := time.Unix(0, 0), NewDoubts(), s.object(p, i)
	seen := doubts.Observe(object, nil, false, begin)
	if p.certain == p.spec {
		seen = doubts.Observe(object, nil, false, begin.Add(pullTime+longestGrace))
	}
	return seen
}

func (s *small) facts(c *counted, ledger []v1beta1.LedgerEntry) Facts {
	f := Facts{Workloads: []Workload{{Name: "Deployment web", Replicas: smallReplicas}}, Ledger: ledger}
	for i := range c.pods {
		if p := &c.pods[i]; p.created && !p.gone {
			f.Pods = append(f.Pods, s.observe(p, i))
			if s.left.zones {
				last := &f.Pods[len(f.Pods)-1]
				last.Subset, last.Declared, last.HandedOver = strconv.Itoa(p.zone), !s.left.shared, p.handed
			}
		}
	}
	switch {
	case s.left.shared:
		f.Unplaced = smallReplicas
		for i := range c.pods {
			if p := &c.pods[i]; p.isLive() && !p.handed && f.Unplaced > 0 {
				f.Unplaced--
			}
		}
	case s.left.zones:
		for zone, replicas := range zoneReplicas {
			f.Subsets = append(f.Subsets, SubsetWorkload{Subset: strconv.Itoa(zone), Replicas: int32(replicas)})
		}
	}
	return f
}

type move struct {
	kind      string
	number    int
	pod       int
	operation v1beta1.Operation
}

func (m move) String() string {
	switch m.kind {
	case "asks":
		return fmt.Sprintf("replica %d is asked: %s p%d", m.number, m.operation, m.pod)
	case "observes", "stops", "starts", "ends":
		return fmt.Sprintf("the kubelet %s p%d", m.kind, m.pod)
	case "fails", "is handed over", "is taken back":
		return fmt.Sprintf("p%d %s", m.pod, m.kind)
	case "replaces in the other zone":
		return m.kind
	case "is certain":
		return fmt.Sprintf("the doubt about p%d ends", m.pod)
	case "replaces", "time passes", "controller counts", "controller writes":
		return m.kind
	default:
		return fmt.Sprintf("replica %d %s", m.number, m.kind)
	}
}

// Moves implements worlds.World.
func (s *small) Moves() (moves []move) {
	add := func(can bool, m move) {
		if can {
			moves = append(moves, m)
		}
	}
	now := s.count()
	busy, live := false, 0
	for r := range s.replicas {
		a := &s.replicas[r]
		active := a.operation != ""
		busy = busy || active
		needs := max(a.known.judged, a.reviewed)
		undecided := active && !a.approved
		early := s.left.early > 0 && !undecided
		add(undecided && !a.live || early && a.known.revision != s.budget.revision, move{kind: "reads the budget", number: r})
		add((undecided || early) && a.count.pods != now.pods || undecided && a.count.revision < needs, move{kind: "counts", number: r})
		add(undecided && a.known.revision > 0 && a.count.revision > 0 && a.count.revision >= needs, move{kind: "decides", number: r})
		add(a.approved, move{kind: "sees its operation happen", number: r})
		add(a.approved, move{kind: "sees its operation refused by others", number: r})
		add(s.left.crashes > 0 && (a.known.revision > 0 || active), move{kind: "crashes", number: r})
		for p := range s.pods {
			for _, operation := range s.left.operations {
				add(!active && s.left.requests > 0 && s.pods[p].isLive() && !s.hasTwin(p), move{"asks", r, p, operation})
			}
		}
	}
	free := -1
	for i := range s.pods {
		p := &s.pods[i]
		if p.isLive() && !p.handed {
			live++
		}
		if !p.created && free < 0 {
			free = i
		}
		alive := p.isLive()
		add(alive && p.observed < p.spec, move{kind: "observes", pod: i})
		add(alive && p.ready && p.observed == p.spec && p.runs < p.spec, move{kind: "stops", pod: i})
		add(alive && !p.ready, move{kind: "starts", pod: i})
		add(s.left.failures > 0 && p.serves(), move{kind: "fails", pod: i})
		// A kubelet that has observed a spec acts on it within the time.
		add(s.left.sameTag && alive && p.runs == p.spec && p.certain < p.spec, move{kind: "is certain", pod: i})
		add(p.created && p.ending && !p.gone, move{kind: "ends", pod: i})
		add(s.left.handed > 0 && alive && !p.handed, move{kind: "is handed over", pod: i})
		add(alive && p.handed, move{kind: "is taken back", pod: i})
	}
	add(s.left.replaced > 0 && live < smallReplicas && free >= 0, move{kind: "replaces", pod: free})
	add(s.left.shared && s.left.replaced > 0 && live < smallReplicas && free >= 0, move{kind: "replaces in the other zone", pod: free})
	add(s.left.waits > 0 && !busy, move{kind: "time passes"})
	add(len(s.budget.ledger) > 0 && (s.counted.pods != now.pods || !slices.Equal(s.listed, s.budget.ledger)), move{kind: "controller counts"})
	add(s.counted.revision > 0, move{kind: "controller writes"})
	return moves
}

// hasTwin is true if no client has asked about the pod or about one before it, and both have had the same history: one is the other by another name.
func (s *small) hasTwin(p int) bool {
	return slices.Contains(s.pods[:p], s.pods[p]) && s.pods[p].revision == 1 && !s.pods[p].asked
}

func (s *small) count() counted { return counted{s.revision, s.pods, s.failed} }

func (s *small) touch(p *smallPod) {
	s.revision++
	p.revision = s.revision
}

// Do implements worlds.World.
func (s *small) Do(m move) error {
	a, p := &s.replicas[m.number], &s.pods[m.pod]
	switch m.kind {
	case "asks":
		s.left.requests--
		p.asked = true
		a.review = review{operation: m.operation, pod: m.pod, reviewed: p.revision}
	case "reads the budget":
		s.beforeRequest(a)
		a.known, a.live = s.budget, a.operation != ""
	case "counts":
		s.beforeRequest(a)
		a.count = s.count()
	case "decides":
		s.decide(a)
	case "sees its operation happen":
		if err := s.happens(a); err != nil {
			return err
		}
	case "sees its operation refused by others":
		a.review = review{}
	case "crashes":
		s.left.crashes--
		if a.approved { // the API server has the answer already
			*a = replica{review: a.review}
		} else {
			*a = replica{}
		}
	case "observes":
		p.observed = p.spec
		s.touch(p)
	case "stops":
		p.ready = false
		s.touch(p)
	case "fails":
		s.left.failures--
		s.failed++
		p.ready = false
		s.touch(p)
	case "is certain":
		p.certain = p.spec
	case "starts":
		p.observed, p.runs, p.ready = p.spec, p.spec, true
		s.touch(p)
	case "ends":
		p.gone = true
		s.touch(p)
	case "is handed over":
		s.left.handed--
		p.handed = true
		s.touch(p)
	case "is taken back":
		p.handed = false
		s.touch(p)
	case "replaces", "replaces in the other zone":
		s.left.replaced--
		zone := 0
		if s.left.zones && s.missing(0, (*smallPod).isLive) == 0 || m.kind != "replaces" {
			zone = 1
		}
		*p = smallPod{created: true, spec: 1, zone: zone}
		s.touch(p)
	case "time passes":
		s.left.waits--
		s.old = slices.Clone(s.budget.ledger)
		for r := range s.replicas {
			s.replicas[r].count = counted{}
		}
	case "controller counts":
		s.counted, s.listed = s.count(), s.budget.ledger
	case "controller writes":
		s.strikeOut()
	}
	switch serving := s.many((*smallPod).serves); {
	case s.failed > 0:
	case s.left.shared:
		if serving < smallReplicas {
			return fmt.Errorf("%d pods serve, and no pod may be unavailable", serving)
		}
	case s.left.zones:
		if s.missing(0, (*smallPod).serves) > 0 && s.missing(1, (*smallPod).serves) > 0 {
			return errors.New("pods of both zones are missing")
		}
	case serving < mustServe:
		return fmt.Errorf("%d pods serve, and %d must", serving, mustServe)
	}
	return nil
}

func (s *small) many(is func(*smallPod) bool) (n int) {
	for i := range s.pods {
		if is(&s.pods[i]) {
			n++
		}
	}
	return n
}

// missing is how many pods of a zone there should be and are not.
func (s *small) missing(zone int, is func(*smallPod) bool) int {
	return zoneReplicas[zone] - s.many(func(p *smallPod) bool { return p.zone == zone && is(p) })
}

func (s *small) beforeRequest(a *replica) {
	if a.operation == "" || a.approved {
		s.left.early--
	}
}

// decide is one round of a replica.
func (s *small) decide(a *replica) {
	p := &a.count.pods[a.pod]
	if !p.created || p.gone {
		a.approved = true // the count is later than the request, so the pod is gone
		return
	}
	r := Request{Name: string(smallUID(a.pod)), UID: smallUID(a.pod), Operation: a.operation, Generation: int64(p.spec)}
	switch a.operation {
	case v1beta1.OperationUpdate:
		r.Generation++
	case v1beta1.OperationUnready:
		r.Revision = strconv.Itoa(a.reviewed)
	}
	d := s.policy.Decide(s.facts(&a.count, a.known.ledger), []Request{r}, metav1.Time{})
	switch {
	case d.Changed && a.known.revision != s.budget.revision: // a conflict
		a.known = smallBudget{}
	case d.Changed:
		s.revision++
		s.budget = smallBudget{s.revision, d.Ledger, max(s.budget.judged, a.count.newestPod())}
		a.known = s.budget
		a.approve(p)
	case !d.Verdicts[0].Allowed:
		a.review = review{}
	case a.live:
		a.approve(p)
	default:
		a.known = smallBudget{} // no write proves the verdict, so the budget is read live
	}
}

func (a *replica) approve(p *smallPod) {
	a.approved, a.served, a.failed = true, p.serves(), a.count.failed
}

// happens applies an approved operation, if the pod is the one that was reviewed. Otherwise the API server asks again. It does not look at an evicted pod
// again. After an operation on a pod that served, enough others must serve, except those that have failed since the pods were counted.
func (s *small) happens(a *replica) error {
	p := &s.pods[a.pod]
	switch {
	case !p.isLive():
		a.review = review{}
		return nil
	case p.revision != a.reviewed && a.operation != v1beta1.OperationEvict:
		a.review = review{operation: a.operation, pod: a.pod, reviewed: p.revision}
		return nil
	}
	served := a.served && p.serves()
	switch a.operation {
	case v1beta1.OperationUpdate:
		p.spec++
	case v1beta1.OperationUnready:
		p.ready = false
	default:
		p.ending = true
	}
	s.touch(p)
	others := s.many((*smallPod).isCertain)
	if s.left.zones && !s.left.shared {
		if elsewhere := s.missing(1-p.zone, (*smallPod).isCertain); served && elsewhere > s.failed-a.failed {
			return fmt.Errorf("%d pods of the other zone are missing after p%d", elsewhere, a.pod)
		}
		a.review = review{}
		return nil
	}
	if since := s.failed - a.failed; served && others+since < mustServe {
		return fmt.Errorf("%d pods serve after p%d, %d have failed since they were counted, and %d must serve", others, a.pod, since, mustServe)
	}
	a.review = review{}
	return nil
}

// strikeOut removes entries whose outcome the controller's count proves, and those that expire. An entry that was renewed meanwhile stays.
func (s *small) strikeOut() {
	var kept []v1beta1.LedgerEntry
	for i := range s.budget.ledger {
		entry := &s.budget.ledger[i]
		at, _ := strconv.Atoi(entry.Name[1:])
		var pod *corev1.Pod
		if p := &s.counted.pods[at]; p.created && !p.gone {
			pod = s.object(p, at)
		}
		judged := slices.Contains(s.listed, *entry)
		if !judged || !Settled(entry, pod) && (!slices.Contains(s.old, *entry) || !MayExpire(entry, pod)) {
			kept = append(kept, *entry)
		}
	}
	if len(kept) < len(s.budget.ledger) {
		s.revision++
		s.budget = smallBudget{s.revision, kept, max(s.budget.judged, s.counted.revision)}
		s.old = slices.DeleteFunc(slices.Clone(s.old), func(e v1beta1.LedgerEntry) bool { return !slices.Contains(kept, e) })
	}
	s.counted, s.listed = counted{}, nil
}

// Rest implements worlds.World. If nothing is under way, no entry stays for ever, and a pod may go if all of them serve.
func (s *small) Rest() (bool, error) {
	serving := s.many((*smallPod).serves)
	for i := range s.pods {
		p := &s.pods[i]
		if p.created && !p.gone && (p.ending || !p.ready || p.runs < p.spec || s.left.sameTag && p.certain < p.spec) {
			return false, nil
		}
	}
	for r := range s.replicas {
		if s.replicas[r].operation != "" {
			return false, nil
		}
	}
	s.old, s.listed, s.counted = s.budget.ledger, s.budget.ledger, s.count()
	s.strikeOut()
	if len(s.budget.ledger) > 0 {
		return true, fmt.Errorf("%d entries stay for ever: %+v", len(s.budget.ledger), s.budget.ledger)
	}
	now := s.count()
	for i := range s.pods {
		if !s.pods[i].serves() {
			continue
		}
		d := s.policy.Decide(s.facts(&now, nil), []Request{request(string(smallUID(i)), v1beta1.OperationDelete)}, metav1.Time{})
		may := serving-1 >= mustServe
		if s.left.shared {
			may = s.pods[i].handed && serving > smallReplicas
			if !s.pods[i].handed && s.many(func(p *smallPod) bool { return p.serves() && p.handed }) > 0 {
				continue // the other pods may go if the one that is handed over is in their zone
			}
		} else if s.left.zones {
			may = s.missing(1-s.pods[i].zone, (*smallPod).serves) <= 0
		}
		if d.Verdicts[0].Allowed != may {
			return true, errors.New("p" + strconv.Itoa(i) + ": " + fmt.Sprintf("%d pods serve, %d must, and a deletion is answered %+v", serving, mustServe, d.Verdicts[0]))
		}
	}
	return true, nil
}

// Spent implements worlds.World.
func (s *small) Spent() bool {
	return s.left.requests+s.left.replaced+s.left.crashes+s.left.early+s.left.waits+s.left.failures+s.left.handed == 0
}

// Copy implements worlds.Copier. No step changes a ledger in place, so the copies may share them.
func (s *small) Copy() worlds.World[move] {
	copied := *s
	return &copied
}

// Key implements worlds.World. Revisions are ranks in it: only their order matters.
func (s *small) Key() string {
	ranks := []int{s.budget.revision, s.budget.judged, s.counted.revision}
	entries := slices.Concat(s.budget.ledger, s.listed, s.old)
	pods := slices.Concat(s.pods[:], s.counted.pods[:])
	for i := range s.replicas {
		a := &s.replicas[i]
		ranks = append(ranks, a.known.revision, a.known.judged, a.count.revision, a.reviewed)
		entries, pods = append(entries, a.known.ledger...), append(pods, a.count.pods[:]...)
	}
	for i := range pods {
		ranks = append(ranks, pods[i].revision)
	}
	for i := range entries {
		if n, err := strconv.Atoi(entries[i].Revision); err == nil {
			ranks = append(ranks, n)
		}
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	var b strings.Builder
	rank := func(revision int) {
		at, _ := slices.BinarySearch(ranks, revision)
		fmt.Fprint(&b, at, " ")
	}
	ledger := func(of []v1beta1.LedgerEntry) {
		for i := range of {
			e := &of[i]
			fmt.Fprint(&b, e.UID, e.Operation, e.Generation, e.Renewals, "@")
			n, _ := strconv.Atoi(e.Revision)
			rank(n)
		}
		b.WriteByte('|')
	}
	all := func(pods *[smallPods]smallPod) {
		for i := range pods {
			p := &pods[i]
			rank(p.revision)
			fmt.Fprint(&b, p.created, p.ready, p.ending, p.gone, p.spec, p.observed, p.runs, p.certain, p.asked, p.zone, p.handed)
		}
		b.WriteByte('|')
	}
	budget := func(k *smallBudget) {
		rank(k.revision)
		rank(k.judged)
		ledger(k.ledger)
	}
	fmt.Fprint(&b, s.left.early, s.left.requests, s.left.replaced, s.left.crashes, s.left.waits, s.left.failures, s.left.handed, " ")
	all(&s.pods)
	budget(&s.budget)
	rank(s.counted.revision)
	all(&s.counted.pods)
	ledger(s.listed)
	ledger(s.old)
	world := b.String()
	var each []string // sorted, because the replicas differ by what they know only
	for i := range s.replicas {
		b.Reset()
		a := &s.replicas[i]
		budget(&a.known)
		rank(a.count.revision)
		all(&a.count.pods)
		rank(a.reviewed)
		fmt.Fprint(&b, s.failed-a.count.failed, a.operation, a.pod, a.live, a.approved, a.served, s.failed-a.failed, "\n")
		each = append(each, b.String())
	}
	slices.Sort(each)
	return world + strings.Join(each, "")
}

// TestEveryHistoryOfASmallWorld lets two webhook replicas, the controller and the kubelet take their steps in every order.
func TestEveryHistoryOfASmallWorld(t *testing.T) {
	searched := smallWorlds
	if *deep {
		searched = deepWorlds
	}
	for name, left := range searched {
		t.Run(name, func(t *testing.T) {
			worlds.Test(t, name, func() worlds.World[move] { return newSmall(t, left) }, 0)
		})
	}
}

// TestRandomHistoriesOfLargerWorlds tries some histories of the worlds that a search takes hours for.
func TestRandomHistoriesOfLargerWorlds(t *testing.T) {
	for name, left := range deepWorlds {
		t.Run(name, func(t *testing.T) {
			worlds.Check(t, name, 500, worlds.Walk(func() worlds.World[move] { return newSmall(t, left) }))
		})
	}
}

// TestHistories plays the histories that found a fault.
func TestHistories(t *testing.T) {
	all := map[string]worlds.Play{"a decision": checkDecision, "another order": anotherOrder, "a group in another order": groupInAnotherOrder, "what is foreseen": whatIsForeseen, "subsets": checkSubsets}
	for _, some := range []map[string]troubles{smallWorlds, deepWorlds} {
		for name, left := range some {
			all[name] = worlds.Walk(func() worlds.World[move] { return newSmall(t, left) })
		}
	}
	worlds.Replay(t, all)
}

var (
	deletions = []v1beta1.Operation{v1beta1.OperationDelete}
	updates   = []v1beta1.Operation{v1beta1.OperationUpdate}
	unreadies = []v1beta1.Operation{v1beta1.OperationUnready}
	evictions = []v1beta1.Operation{v1beta1.OperationEvict}
)

// smallWorlds are searched with each run of the tests.
var smallWorlds = map[string]troubles{
	"two deletions":               {requests: 2, operations: deletions, early: 1},
	"two deletions and a crash":   {requests: 2, operations: deletions, crashes: 1},
	"two updates":                 {requests: 2, operations: updates},
	"two that make a pod unready": {requests: 2, operations: unreadies},
	"a deletion that is replaced": {requests: 2, operations: deletions, replaced: 1},
	"approvals that expire":       {requests: 2, operations: deletions, waits: 1},
	"an update or a deletion":     {requests: 2, operations: slices.Concat(deletions, updates)},
	"a pod that starts":           {requests: 2, operations: deletions, starting: 1},
	"a pod that is evicted":       {requests: 2, operations: evictions, starting: 1},
	"two pods that fail":          {requests: 1, operations: deletions, failures: 2},
	"two tags of one image":       {requests: 2, operations: updates, waits: 1, sameTag: true},
	"two zones":                   {requests: 2, operations: deletions, early: 1, zones: true},
	"two zones and an update":     {requests: 2, operations: slices.Concat(deletions, updates), zones: true},
	"a pod that is handed over":   {requests: 1, operations: deletions, replaced: 1, zones: true, shared: true, handed: 1},
}

// deepWorlds are searched with -deep in place of smallWorlds.
var deepWorlds = map[string]troubles{
	"approvals that are given again": {requests: 3, operations: deletions, waits: 1},
	"deletions":                      {requests: 3, operations: deletions, early: 3, replaced: 1, crashes: 1, waits: 1},
	"updates":                        {requests: 3, operations: updates, early: 2, waits: 1},
	"unready":                        {requests: 3, operations: unreadies, early: 2, waits: 1},
	"every operation":                {requests: 3, operations: slices.Concat(deletions, updates, unreadies), early: 1},
	"pods that start and fail":       {requests: 3, operations: slices.Concat(deletions, updates, evictions), early: 2, starting: 1, failures: 2},
	"a zone that is replaced":        {requests: 2, operations: deletions, replaced: 1, zones: true},
	"zones":                          {requests: 3, operations: slices.Concat(deletions, updates, evictions), early: 2, replaced: 1, crashes: 1, waits: 1, failures: 1, zones: true},
	"pods that are handed over":      {requests: 3, operations: slices.Concat(deletions, evictions), early: 2, replaced: 1, crashes: 1, waits: 1, zones: true, shared: true, handed: 2},
	"two tags":                       {requests: 3, operations: slices.Concat(updates, deletions), early: 1, waits: 2, sameTag: true},
	"everything":                     {requests: 4, operations: slices.Concat(deletions, updates, unreadies, evictions), early: 2, replaced: 1, crashes: 1, waits: 1, starting: 1, failures: 1},
}
