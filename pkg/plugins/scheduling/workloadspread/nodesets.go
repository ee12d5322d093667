package workloadspread

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/subset"
)

// nodeSets know which nodes of the scheduler's snapshot each subset selects, without those that announce their end. They are updated to the snapshot of each cycle, so they are exact in that
// cycle.
//
// They rely on what the scheduler's cache guarantees: every change of a node, or of the pods on it, gives the node a generation higher than any
// before, and the list of a snapshot is the same slice until a node is added or removed. So a cycle costs one comparison per node. Labels are matched
// again when a node has new ones, or was added or removed.
type nodeSets struct {
	nodes []fwk.NodeInfo
	// newest generation that was read.
	newest  int64
	notices podstate.Notices
	// labels of each node as they were read, which nodes announced their end, and the index of each by its name.
	labels []map[string]string
	ends   sets.Set[int]
	index  map[string]int
	// byTerm are the node sets that were asked for, by subset.NodesKey.
	byTerm map[string]nodeSet
}

// nodeSet is the nodes that a subset selects. It never changes, because cycles keep it.
type nodeSet struct {
	// at are their indexes, ascending.
	at []int
	// names are nil if these are all nodes.
	names sets.Set[string]
	// ending is how many others announce their end.
	ending int
}

// maxNodeSets bounds the node sets that are kept. Spreads over the same zones or pools share theirs.
const maxNodeSets = 4096

func newNodeSets(notices podstate.Notices) nodeSets {
	return nodeSets{notices: notices, byTerm: map[string]nodeSet{}}
}

// update reads the nodes of a cycle's snapshot.
func (t *nodeSets) update(nodes []fwk.NodeInfo) {
	if len(nodes) != len(t.nodes) || len(nodes) > 0 && &nodes[0] != &t.nodes[0] {
		t.nodes, t.labels, t.ends, t.index = nodes, make([]map[string]string, len(nodes)), sets.New[int](), make(map[string]int, len(nodes))
		for i, info := range nodes {
			t.labels[i], t.index[info.Node().Name] = info.Node().Labels, i
			t.note(i, info.Node())
		}
		clear(t.byTerm)
	}
	newest := t.newest
	for i, info := range nodes {
		generation := info.GetGeneration()
		if generation <= t.newest {
			continue
		}
		newest = max(newest, generation)
		changed := t.note(i, info.Node())
		if labels := info.Node().Labels; changed || !maps.Equal(labels, t.labels[i]) {
			t.labels[i] = labels
			clear(t.byTerm)
		}
	}
	t.newest = newest
}

// note notes whether a node announces its end. It is true if that has changed.
func (t *nodeSets) note(index int, node *corev1.Node) (changed bool) {
	before := t.ends.Has(index)
	if t.notices.Of(node) == "" {
		t.ends.Delete(index)
	} else {
		t.ends.Insert(index)
	}
	return before != t.ends.Has(index)
}

// selectsAll is true if the subset selects every node, and none announces its end.
func (t *nodeSets) selectsAll(in *subset.Subset) bool {
	return in.SelectsAllNodes() && len(t.ends) == 0
}

func (t *nodeSets) set(in *subset.Subset) nodeSet {
	if known, found := t.byTerm[in.NodesKey()]; found {
		return known
	}
	var set nodeSet
	if !t.selectsAll(in) {
		set.names = sets.New[string]()
	}
	for i, info := range t.nodes {
		switch node := info.Node(); {
		case !in.Holds(node):
		case t.ends.Has(i):
			set.ending++
		default:
			set.at = append(set.at, i)
			if set.names != nil {
				set.names.Insert(node.Name)
			}
		}
	}
	if len(t.byTerm) >= maxNodeSets {
		clear(t.byTerm)
	}
	t.byTerm[in.NodesKey()] = set
	return set
}

// of is the set of the names of the subset's nodes. Nil if these are all nodes, or if no snapshot was read. The caller must not change it.
func (t *nodeSets) of(in *subset.Subset) sets.Set[string] {
	if t.selectsAll(in) || t.nodes == nil {
		return nil
	}
	return t.set(in).names
}

// one is a node of the subset with a generation above the given one for which f is true, or nil. It goes around, and begins with the node of the given
// name. An unknown name is that of the first node.
func (t *nodeSets) one(in *subset.Subset, generation int64, first string, f func(fwk.NodeInfo) bool) fwk.NodeInfo {
	at := t.set(in).at
	begin, _ := slices.BinarySearch(at, t.index[first])
	for i := range at {
		if info := t.nodes[at[(begin+i)%len(at)]]; info.GetGeneration() > generation && f(info) {
			return info
		}
	}
	return nil
}
