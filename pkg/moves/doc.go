// Package moves decides which pods of a spread a descheduler evicts, and in which order, so that their replacements end
// in a better subset. Pods that wait in vain leave their subset (Leave). Pods above the quota or outside of their
// subset are replaced (Trim). Pods of a later subset return when an earlier one has room (Return).
//
// It also decides when not to move pods. If pods come back to where they were moved from, the wait before the next move
// doubles. A spread is left alone while its workload changes. Nothing is moved without room for it. What the next run
// must know of that is stored in the spread's status: Record writes it, and the caller stores it before it acts.
//
// The package takes plain data and two questions to the cluster (is there room, may this pod be evicted) and returns
// plain data. It has no client, clock, logger or goroutine. It asks package subset where pods may be. Begin reading at
// Facts, then Return.
package moves
