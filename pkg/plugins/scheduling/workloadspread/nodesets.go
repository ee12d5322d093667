package workloadspread

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/subset"
)

// nodeSets know which nodes of the scheduler's snapshot each subset selects, and which nodes have changed of late. They are brought up to the
// snapshot of each cycle, so what they say is exact in that cycle.
//
// They rely on what the scheduler's cache promises: every change of a node or of the pods on it gives the node a generation higher than
// any before, and the list of a snapshot is the same slice until a node comes or goes. A cycle therefore costs one comparison per node, and
// label matching only for nodes with new labels.
type nodeSets struct {
	nodes []fwk.NodeInfo
	// newest generation that has been taken in.
	newest int64
	// known are the nodes by name as they were taken in.
	known map[string]knownNode
	// byTerm are the nodeSets that were asked for, by subset.NodesKey.
	byTerm map[string]*nodeSet
	// changes in the order in which they were taken in. The generations of one cycle are all above those of the cycles before.
	changes []change
	// forgotten is the newest generation that is no longer among the changes.
	forgotten int64
}

type knownNode struct {
	info fwk.NodeInfo
	// node as it was taken in; the info has another by now if it has changed.
	node *corev1.Node
}

// nodeSet is the set of nodes that a subset selects.
type nodeSet struct {
	holds func(*corev1.Node) bool
	// members by name. The set is replaced and never changed, for cycles keep it.
	members sets.Set[string]
}

type change struct {
	node fwk.NodeInfo
	// generation of the node at that time; it has another by now if it has changed again.
	generation int64
	// upTo is the newest generation of any node at that time.
	upTo int64
}

const (
	// maxNodeSets bounds the nodeSets that are kept. Spreads over the same zones or pools share theirs.
	maxNodeSets = 4096
	// maxChanges bounds the changes that are kept. Whoever asks for older ones has to look at all nodes.
	maxChanges = 8192
)

func newNodeSets() nodeSets {
	return nodeSets{known: map[string]knownNode{}, byTerm: map[string]*nodeSet{}}
}

// update takes in the nodes of a cycle's snapshot.
func (t *nodeSets) update(nodes []fwk.NodeInfo) {
	edits := edits{}
	if len(nodes) != len(t.nodes) || len(nodes) > 0 && &nodes[0] != &t.nodes[0] {
		t.relist(nodes, edits)
	}
	newest := t.newest
	for _, info := range nodes {
		if generation := info.GetGeneration(); generation > t.newest {
			newest = max(newest, generation)
			t.changes = append(t.changes, change{node: info, generation: generation})
		}
	}
	if newest == t.newest {
		return
	}
	t.newest = newest
	for i := len(t.changes) - 1; i >= 0 && t.changes[i].upTo == 0; i-- {
		t.changes[i].upTo = newest
		t.relabel(t.changes[i].node, edits)
	}
	if len(t.changes) > maxChanges {
		kept := t.changes[len(t.changes)-maxChanges/2:]
		// All of the oldest kept cycle are forgotten with it, for some of its changes are.
		t.forgotten = kept[0].upTo
		t.changes = append([]change(nil), kept...)
	}
}

// edits are the nodeSets whose members were replaced in this update, and so may still be changed.
type edits map[*nodeSet]bool

func (e edits) of(t *nodeSet) sets.Set[string] {
	if !e[t] {
		e[t] = true
		t.members = t.members.Clone()
	}
	return t.members
}

// relist takes in that nodes came or went.
func (t *nodeSets) relist(nodes []fwk.NodeInfo, edits edits) {
	t.nodes = nodes
	there := make(sets.Set[string], len(nodes))
	for _, info := range nodes {
		there.Insert(info.Node().Name)
		t.relabel(info, edits)
	}
	for name := range t.known {
		if there.Has(name) {
			continue
		}
		delete(t.known, name)
		for _, set := range t.byTerm {
			if set.members.Has(name) {
				edits.of(set).Delete(name)
			}
		}
	}
}

// relabel takes in a node that is new or may have new labels.
func (t *nodeSets) relabel(info fwk.NodeInfo, edits edits) {
	node := info.Node()
	before := t.known[node.Name]
	if before.node == node && before.info == info {
		return
	}
	t.known[node.Name] = knownNode{info, node}
	if before.node != nil && maps.Equal(before.node.Labels, node.Labels) {
		return
	}
	for _, set := range t.byTerm {
		switch holds, held := set.holds(node), set.members.Has(node.Name); {
		case holds && !held:
			edits.of(set).Insert(node.Name)
		case held && !holds:
			edits.of(set).Delete(node.Name)
		}
	}
}

// of is the set of the nodes that the subset selects, by name; nil if it selects every node, or if no snapshot has been taken in. The caller
// does not change it.
func (t *nodeSets) of(in *subset.Subset) sets.Set[string] {
	if in.SelectsAllNodes() || t.nodes == nil {
		return nil
	}
	known, found := t.byTerm[in.NodesKey()]
	if !found {
		if len(t.byTerm) >= maxNodeSets {
			clear(t.byTerm)
		}
		known = &nodeSet{holds: in.Holds, members: sets.New[string]()}
		for _, info := range t.nodes {
			if node := info.Node(); in.Holds(node) {
				known.members.Insert(node.Name)
			}
		}
		t.byTerm[in.NodesKey()] = known
	}
	return known.members
}

// one is a node of the subset for which f is true, or nil. It begins with the node of the given name, if the subset has it.
func (t *nodeSets) one(in *subset.Subset, first string, f func(fwk.NodeInfo) bool) fwk.NodeInfo {
	members := t.of(in)
	if known, found := t.known[first]; found && (members == nil || members.Has(first)) && f(known.info) {
		return known.info
	}
	if members == nil {
		for _, info := range t.nodes {
			if f(info) {
				return info
			}
		}
		return nil
	}
	for name := range members {
		if info := t.known[name].info; f(info) {
			return info
		}
	}
	return nil
}

// changedSince calls f with nodes, among them every node whose generation is above the given one, until f returns true. It reports whether f
// did.
func (t *nodeSets) changedSince(generation int64, f func(fwk.NodeInfo) bool) bool {
	if generation < t.forgotten {
		for _, info := range t.nodes {
			if info.GetGeneration() > generation && f(info) {
				return true
			}
		}
		return false
	}
	for i := len(t.changes) - 1; i >= 0 && t.changes[i].upTo > generation; i-- {
		// A node that has changed again stands further on in the list.
		if c := t.changes[i]; c.generation > generation && c.node.GetGeneration() == c.generation && f(c.node) {
			return true
		}
	}
	return false
}
