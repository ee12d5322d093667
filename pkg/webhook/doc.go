// Package webhook tells users what is wrong with a WorkloadSpread at the moment they apply it: it refuses one that cannot be used, with all
// errors and their paths, and warns of what is legal and probably not meant. It changes nothing, and nothing depends on it: the scheduler
// holds the pods of an invalid spread and the status controller reports it, however it came in.
//
// Begin reading at Setup, which says what is served and when it is ready. Then follow one request: it gathers what is known from the
// cache (spread.go), asks ValidateSpread (validate.go, pure), and answers. Where the certificate comes from is in certificates.go.
package webhook
