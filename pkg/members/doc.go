// Package members knows the clusters of a federation. A member is a ClusterProfile in the hub. The package connects to each member, keeps a cache of what
// the hub owns there, and says which state the member is in. It divides no replicas and writes nothing into a member: callers do that, with the clients
// that they get here.
//
// One member never delays another. Each has a goroutine, an HTTP transport, a rate limit and a cache of its own, and no lock is held during a request.
// What is read from a cache is never older than Options.StaleAfter: if a member may have changed unseen, its cache is dropped and built again.
//
// Begin reading at Set, then link.run, which is the life of one member.
package members
