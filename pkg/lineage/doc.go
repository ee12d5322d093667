// Package lineage knows who owns whom, from the cache of a manager: upwards from a pod, from owner to owner, to the spread that divides it.
// Owners may be of any kind. Kinds that are not built in are watched, by their metadata alone, from the moment that a spread names one or an
// object in a namespace with a spread is owned by one; this happens on every replica, whoever leads.
//
// It writes nothing, and answers from the cache without asking the API server; it decides no placement. Adapters that read through a manager
// (controllers, webhooks) share one Lineage. Begin reading at New, then Lineage.SpreadOf.
package lineage
