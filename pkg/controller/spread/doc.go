// Package controller tells users where the pods of their WorkloadSpreads are: it writes the status of every spread, and events when something
// changes. It keeps the deletion costs of the pods right, gives adopted pods the metadata of their subset, and replaces pending pods whose picked
// subset has filled. It changes pods in no other way. It decides no placement: it asks package subset and reports the answer.
//
// Begin reading at family.watches, which says what is watched. Events record what has changed (watch.go). Then follow one reconcile. It gathers facts
// (gather.go), for which it updates the account of the spread's pods (account.go). It corrects pods (pods.go). It describes the facts as a status
// (describe.go, pure), and writes the status if it differs (reconcile.go). family.go finds the pods of a spread by walking from owner to owner.
package spread
