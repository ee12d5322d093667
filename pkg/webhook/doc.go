// Package webhook is Berth's part of admission.
//
// To pods of a workload with a spread it adds what components other than our scheduler must know: the scheduler's name, the tolerations of the
// subsets, and the required node terms of the subsets. It picks no subset, except for pods that bind early. It sends no request to the API server. If
// something is not known in time, the pod is admitted as it is, and counted where it ends.
//
// It tells users what is wrong with a WorkloadSpread when they apply it. An invalid spread is refused, with all errors and their paths. Settings that
// are valid but probably not meant cause warnings. Nothing depends on that: the scheduler holds the pods of an invalid spread, and the status
// controller reports it, however it was stored.
//
// Begin reading at Setup: it says what is served and when it is ready. Then follow one request. review.go decodes and answers a pod's review. pod.go
// finds the pod's spread, asks the model, and answers with the difference (patch.go). Pods that bind early go on to early.go, which finds out how
// full the subsets are (bookings.go). For a spread, spread.go gathers what is known and calls validateSpread (validate.go, pure). certificates.go
// provides the certificate. clients.go decides which clients are answered, and paths.go how the API server is recognized by the path that it calls.
package webhook
