// Package lineage knows owners, from the cache of a manager: from a pod, from owner to owner, to the spread that divides it. Owners may be of any
// kind. Kinds that are not built in are watched, by their metadata only, from the moment that a spread names one, or that one owns an object in a
// namespace with a spread. This happens on every replica, leader or not.
//
// It writes nothing, answers from the cache without requests to the API server, and decides no placement. Adapters that read through a manager
// (controllers, webhooks) share one Lineage. Begin reading at New, then Lineage.SpreadOf.
package lineage
