// Package controller tells users where the pods of their WorkloadSpreads are: it writes the status of every spread, and an event when
// there is news. It keeps the deletion costs of the pods right, gives adopted pods the metadata of their subset, and touches pods in no other
// way. It decides no placement; it asks package subset and reports the answer.
//
// Begin reading at family.watches, which says what is watched. Events note what has changed (watch.go). Then follow one reconcile: it gathers
// facts (gather.go), for which it brings the account of the spread's pods up to date by what has changed (account.go), corrects pods
// (pods.go), describes the facts as a status (describe.go, pure), and writes the status if it differs (reconcile.go). Which pods belong to
// a spread is answered by walking from owner to owner, in family.go.
package controller
