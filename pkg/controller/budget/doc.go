// Package budget writes the status of PodUnavailableBudgets: the numbers, recounted from the API server and written with the resourceVersion
// of the budget that they were counted for; the ledger without the entries of which it is proven what became of them; and the protection
// label on the pods. It lets nothing through and refuses nothing: that is the webhook's, in pkg/guard.
//
// Begin reading at reconciler.Reconcile.
package budget
