// Package lineage finds the spread that divides a pod. It follows the owner chain of the pod in the cache of a manager.
// Owners may be of any kind. The package watches the metadata of other than built-in kinds on demand: once a spread
// names the kind, or once an object of the kind owns an object in a namespace with a spread. This happens on every
// replica, leader or not.
//
// It writes nothing, decides no placement, and answers from the cache without requests to the API server, except for
// Ordinals. Adapters that read through a manager (controllers, webhooks) share one Lineage. Begin reading at New, then
// Lineage.SpreadOf.
//
// Rules say which workloads get a spread without anybody writing one, for the controller that makes these spreads, and
// for admission, which need not wait for them. Begin reading at PickRule.
//
// A Snapshot answers the same from what the API server had at one moment, by its own lists, for programs that look once
// and do not watch. It begins at Take.
package lineage
