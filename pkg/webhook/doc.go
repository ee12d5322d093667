// Package webhook is Berth's part of admission.
//
// To pods of a workload with a spread it adds what every component must know that is not our scheduler: the scheduler's name, the tolerations
// of the subsets, and where their nodes are. It picks no subset, except for pods that bind early; it asks the API server for nothing and writes nothing.
// What it does not know in time is admitted as it is, and counted where it ends.
//
// Users are told what is wrong with a WorkloadSpread at the moment they apply it: one that cannot be used is refused, with all errors and their
// paths, and what is legal and probably not meant is a warning. Nothing depends on that: the scheduler holds the pods of an invalid spread
// and the status controller reports it, however it came in.
//
// Begin reading at Setup, which says what is served and when it is ready. Then follow one request. A pod's review is decoded and answered in
// review.go; pod.go gathers whose pod it is, asks the model, and answers with the difference (patch.go). Pods that
// bind early go on to early.go, which gathers how full the subsets are (bookings.go). For a spread, spread.go gathers
// what is known from the cache and asks ValidateSpread (validate.go, pure). Where the certificate comes from is in certificates.go. Who is answered at all is in
// clients.go, and how the API server is told from others, by where it asks, in paths.go.
package webhook
