// Package budget is the controller of PodUnavailableBudgets. It counts the pods through the API server, and writes the numbers into the status with the
// resourceVersion of the budget for which it has counted. It removes ledger entries whose outcome is proven. It also sets the protection label on
// the pods. It neither allows nor refuses an operation: the webhook in pkg/guard does that.
//
// Begin reading at reconciler.Reconcile.
package budget
