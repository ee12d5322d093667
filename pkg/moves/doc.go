// Package moves decides which pods of a spread a descheduler evicts, in which order, so that pods made in their place end in a better subset:
// pods that wait in vain leave their subset (Leave), pods above the quota or outside of their subset are placed anew (Trim), and pods of a later
// subset come home when an earlier one has room (Return).
//
// It holds back as much as it decides. Where the same pods would come back to where they were moved from, the time to the next move doubles; a
// spread is left in peace while its workload changes; and nothing is moved for which there is no room. What must be remembered for that between
// two runs is data of the spread's status, which Record writes into and the caller stores before it acts.
//
// The package takes plain data and two questions to the cluster (is there room, may this pod go) and returns plain data. It has no client,
// clock, logger or goroutine. Where pods may be is the business of package subset, which it asks. Begin reading at Facts, then Return.
package moves
