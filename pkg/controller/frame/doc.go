// Package frame is what every controller of Berth needs: a queue that collects changes and serves namespaces in turn (turns.go), a deadline and a backoff (controller.go), metrics with a bound (measures.go), events and conditions that the API
// server stores (news.go), writes of statuses and finalizers, and what is remembered of an object (write.go), who else writes a status (writers.go), what the cache keeps of objects and how it finds them (cache.go), which errors are refusals, and the ControllerRevisions of an
// object. It decides nothing. The only objects of Berth that it knows are those that the cache trims.
//
// Controllers import this package and pkg/controller/apply, and no other controller.
package frame
