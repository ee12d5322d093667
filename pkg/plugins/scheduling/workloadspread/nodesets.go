package workloadspread

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/subset"
)

// nodeSets know which nodes of the scheduler's snapshot each subset selects, and which nodes have changed recently. They are updated to the snapshot
// of each cycle, so they are exact in that cycle.
//
// They rely on what the scheduler's cache guarantees: every change of a node, or of the pods on it, gives the node a generation higher than any
// before, and the list of a snapshot is the same slice until a node is added or removed. So a cycle costs one comparison per node, and label matching
// only for nodes with new labels.
type nodeSets struct {
	nodes []fwk.NodeInfo
	// newest generation that was read.
	newest int64
	// known are the nodes by name, as they were read.
	known map[string]knownNode
	// byTerm are the node sets that were asked for, by subset.NodesKey.
	byTerm map[string]*nodeSet
	// changes in the order in which they were read. The generations of a cycle are above those of the cycles before.
	changes []change
	// forgotten is the newest generation that is no longer in changes.
	forgotten int64
}

type knownNode struct {
	info fwk.NodeInfo
	// node as it was read. The info has another node by now if it has changed.
	node *corev1.Node
}

// nodeSet is the set of nodes that a subset selects.
type nodeSet struct {
	holds func(*corev1.Node) bool
	// members by name. The set is replaced and never changed, because cycles keep it.
	members sets.Set[string]
}

type change struct {
	node fwk.NodeInfo
	// generation of the node at that time. It is higher by now if the node has changed again.
	generation int64
	// upTo is the newest generation of any node at that time.
	upTo int64
}

const (
	// maxNodeSets bounds the node sets that are kept. Spreads over the same zones or pools share theirs.
	maxNodeSets = 4096
	// maxChanges bounds the changes that are kept. A question about older changes looks at all nodes.
	maxChanges = 8192
)

func newNodeSets() nodeSets {
	return nodeSets{known: map[string]knownNode{}, byTerm: map[string]*nodeSet{}}
}

// update reads the nodes of a cycle's snapshot.
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
		// The whole oldest cycle that is kept counts as forgotten, because some of its changes are.
		t.forgotten = kept[0].upTo
		t.changes = append([]change(nil), kept...)
	}
}

// edits are the node sets whose members were replaced in this update. Only these may still be changed.
type edits map[*nodeSet]bool

func (e edits) of(t *nodeSet) sets.Set[string] {
	if !e[t] {
		e[t] = true
		t.members = t.members.Clone()
	}
	return t.members
}

// relist handles added and removed nodes.
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

// relabel handles a node that is new or may have new labels.
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

// of is the set of the names of the nodes that the subset selects. Nil if it selects every node, or if no snapshot was read. The caller must not
// change it.
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

// one is a node of the subset for which f is true, or nil. It tries the node with the given name first, if the subset has it.
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

// changedSince calls f with nodes until f returns true. These include every node whose generation is above the given one. It returns whether f
// returned true.
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
		// A node that has changed again comes later in the list.
		if c := t.changes[i]; c.generation > generation && c.node.GetGeneration() == c.generation && f(c.node) {
			return true
		}
	}
	return false
}
