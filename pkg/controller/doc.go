// Package controller tells users where the pods of their WorkloadSpreads are: it writes the status of every spread, and an event when
// there is news. It keeps the deletion costs of the pods right, gives adopted pods the metadata of their subset, and touches pods in no other
// way. It decides no placement; it asks package subset and reports the answer.
//
// Begin reading at Setup, which says what is watched. Then follow one reconcile: it gathers facts (gather.go), corrects pods (pods.go),
// describes the facts as a status (describe.go, pure), and writes the status if it differs (reconcile.go). Which pods belong to a spread is
// answered by walking from owner to owner, in family.go.
package controller
