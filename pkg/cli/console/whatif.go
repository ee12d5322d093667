package console

// Summary is how a command appears in the list of commands.
type Summary struct{ Use, Short string }

// The commands of berth-whatif. kubectl-berth starts that program for them, because the scheduler's filters are larger
// than everything else of it together.
var (
	Explain  = Summary{"explain POD...", "Why a pod is where it is, subset by subset, by the scheduler's own filters"}
	Simulate = Summary{"simulate (SPREAD | -f FILE)", "Where pods would be with a spread, before it is applied"}
)
