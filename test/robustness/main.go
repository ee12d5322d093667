// Command robustness finds out whether the tests notice faults, and writes docs/api/detected-faults.md. Each file in faults/ is a fault as a patch. The program
// copies the repository, applies one fault at a time to the copy, and runs the fast suites of the package with it. It also runs the searches of small
// worlds without a fault, and writes how many states they saw.
//
// It fails if a suite that should notice a fault does not.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// suite is one run of go test.
type suite struct {
	// name is the column of the table.
	name string
	args []string
}

// of137 is the key of the suites of a package for files that only Kubernetes 1.37 has.
const of137 = " of 1.37"

const (
	examples = "examples"
	random   = "random histories"
	every    = "every history"
)

// columns are the names of the suites, in the order of the table.
var columns = []string{examples, random, every}

const (
	ledgerRandom = "^(TestNoHistoryLosesOrInventsASlot|TestNoHistoryOfTwoGroupsBlocksOne|TestNoPodSleepsThatCouldGo|TestNoPodOfAStatefulSetSleepsThatCouldGo|TestNoPodTakesAVictimOrASlotTooMany|TestTheOrderOfNewsDoesNotMatter|TestTheLayoutFollowsTheOrdinals|TestPodsFollowAWorkloadThatChanges|TestRandomHistoriesOfLargerWorlds)$"
	subsetRandom = "^(TestAPlanAddsUpToTheReplicas|TestNoSubsetGetsMoreThanItsQuota|TestTheOrderOfPodsDoesNotMatter|TestAddingThenRemovingAPodChangesNothing|TestSurplusIsWhatIsAboveTheQuota|TestAnApplicationOrdersThePodsOfASubset|TestTheOrderOfChangesDoesNotMatter)$"
	budgetRandom = "^(TestAfterEveryApprovalEnoughPodsAreLeft|TestTheOrderOfPodsAndOfTheLedgerDoesNotMatter|TestHowManyOfAGroupGoDoesNotDependOnItsOrder|TestNoTwoSubsetsAreTakenFrom|TestWhatIsForeseenFromAStatusThatIsTrueIsWhatIsDecided|TestRandomHistoriesOfLargerWorlds)$"
	movesRandom  = "^(TestWhateverIsMovedMayBeMoved|TestNoSubsetIsFilledAboveItsQuota|TestRunningEarlyBoundPodsFindTheRoomThatTheyWereMovedFor|TestTheOrderOfPodsDoesNotMatter|TestWhatIsRecordedIsNotMovedAgain|TestASlotIsNotGivenTwiceInOneCycle|TestACycleFillsNoSubsetAboveItsQuota|TestRandomHistoriesOfALargerWorld)$"
	shareRandom  = "^(TestProperties|TestApproachArrives|TestSharesOfLargeNumbersAreExact)$"
	unitedRandom = "^(TestNothingThatRunsIsDeletedToFindOut|TestChildrenGoWhenOthersAreReady|TestClustersGoAwayAndReturn)$"
	hubRandom    = "^TestNothingIsMovedInVain$"
	sidesRandom  = "^TestWorld$"
	wholeRandom  = "^TestNoHistoryOfAWholeSchedulerBreaksARule$"
	searches     = "^(TestEveryHistory.*|TestTheBarrierOfATakeOverOutlivesEveryBind)$"
)

// suites are those of each package that has faults. All seeds are fixed.
var suites = map[string][]suite{
	"pkg/ledger": {
		{examples, []string{"-skip", ledgerRandom + "|" + searches, "./pkg/ledger"}},
		{random, []string{"-run", ledgerRandom, "./pkg/ledger"}},
		{every, []string{"-run", searches, "./pkg/ledger"}},
	},
	"pkg/budget": {
		{examples, []string{"-skip", budgetRandom + "|" + searches, "./pkg/budget"}},
		{random, []string{"-run", budgetRandom, "./pkg/budget"}},
		{every, []string{"-run", searches, "./pkg/budget"}},
	},
	"pkg/budget/census": {{examples, []string{"./pkg/budget/census"}}},
	"pkg/subset": {
		{examples, []string{"-run", "^(TestPlan|TestAdmit|TestLagsBehind|TestSubsetOf|TestAdoptedPods|TestRecordOf|TestRevisionOf|TestSurplus|TestATolerationForSomeSecondsLetsNoNewPodIn|TestQuotasOfWorkloadsThatUpdateInPlace|TestWhatAPodCostsInEachSubset)$", "./pkg/subset"}},
		{random, []string{"-run", subsetRandom + "|" + ledgerRandom + "|" + wholeRandom, "./pkg/subset", "./pkg/ledger", "./pkg/plugins/scheduling/workloadspread"}},
		{every, []string{"-run", searches, "./pkg/ledger"}},
	},
	"pkg/allocation": {
		{examples, []string{"-skip", shareRandom, "./pkg/allocation"}},
		{random, []string{"-run", shareRandom, "./pkg/allocation"}},
	},
	"pkg/united": {
		{examples, []string{"-skip", unitedRandom, "./pkg/united"}},
		{random, []string{"-run", unitedRandom, "./pkg/united"}},
	},
	"pkg/federation": {
		{examples, []string{"-skip", hubRandom, "./pkg/federation"}},
		{random, []string{"-run", hubRandom, "./pkg/federation"}},
	},
	"pkg/sidecar": {
		{examples, []string{"-skip", sidesRandom, "./pkg/sidecar"}},
		{random, []string{"-run", sidesRandom, "./pkg/sidecar"}},
	},
	"pkg/moves": {
		{examples, []string{"-skip", movesRandom + "|" + searches, "./pkg/moves"}},
		{random, []string{"-run", movesRandom, "./pkg/moves"}},
		{every, []string{"-run", searches, "./pkg/moves"}},
	},
	"pkg/plugins/scheduling/workloadspread": {
		{examples, []string{"-run", "Lease|TakeOver|Bind|Leader|Gate|BeyondAllQuotas|Deleted|SpreadComes|GoesOn|Kind|Discovery|EveryProfile|Victim|ReplicasAreRead|Notice|ItsEnd|NodeSets", "-skip", searches, "./pkg/plugins/scheduling/workloadspread"}},
		{random, []string{"-run", wholeRandom, "./pkg/plugins/scheduling/workloadspread"}},
		{every, []string{"-run", searches, "./pkg/plugins/scheduling/workloadspread"}},
	},
	"pkg/plugins/scheduling/workloadspread" + of137: {
		{examples, []string{"-modfile=hack/lines/1.37/go.mod", "-tags=kubernetes_1_37", "-run", "Gang|Group", "-skip", "^TestNoHistoryOfGangs", "./pkg/plugins/scheduling/workloadspread"}},
		{random, []string{"-modfile=hack/lines/1.37/go.mod", "-tags=kubernetes_1_37", "-run", "^TestNoHistoryOfGangs", "./pkg/plugins/scheduling/workloadspread"}},
	},
	"pkg/report":                {{examples, []string{"./pkg/report", "./pkg/cli"}}},
	"pkg/fit":                   {{examples, []string{"./pkg/fit"}}},
	"pkg/controller/apply":      {{examples, []string{"./pkg/controller/apply", "./pkg/controller/federation", "./pkg/controller/united"}}},
	"pkg/controller/spread":     {{examples, []string{"./pkg/controller/spread"}}},
	"pkg/controller/budget":     {{examples, []string{"./pkg/controller/budget"}}},
	"pkg/controller/rule":       {{examples, []string{"./pkg/controller/rule"}}},
	"pkg/workload":              {{examples, []string{"./pkg/workload"}}},
	"pkg/lineage":               {{examples, []string{"./pkg/lineage"}}},
	"pkg/controller/frame":      {{examples, []string{"./pkg/controller/frame", "./pkg/controller/budget"}}},
	"pkg/controller/federation": {{examples, []string{"./pkg/controller/federation"}}},
	"pkg/controller/sidecar":    {{examples, []string{"./pkg/controller/sidecar"}}},
	"pkg/controller/united":     {{examples, []string{"./pkg/controller/united"}}},
	"pkg/descheduler/cycle":     {{examples, []string{"./pkg/descheduler/cycle"}}},
	"pkg/members":               {{examples, []string{"./pkg/members"}}},
	"pkg/guard":                 {{examples, []string{"./pkg/guard"}}},
	"pkg/webhook":               {{examples, []string{"./pkg/webhook"}}},
}

// searched are the packages with searches of small worlds.
var searched = []string{"./pkg/ledger", "./pkg/budget", "./pkg/moves", "./pkg/plugins/scheduling/workloadspread"}

// fault is a patch with a header.
type fault struct {
	name, path string
	// breaks says what the fault does, and origin where it is from.
	breaks, origin string
	// noticed names the suite that must notice it.
	noticed string
	// in is the package that it changes, and suites is the key of its suites.
	in, suites string
}

func main() {
	page := flag.String("page", "docs/api/detected-faults.md", "the page to write the tables into")
	only := flag.String("only", "", "try only the faults whose name matches this regular expression, and write only their rows")
	clusters := flag.String("clusters", "", "try the suites on a control plane instead, with the programs of this directory, and write their table; it takes half an hour")
	flag.Parse()
	if err := run(context.Background(), *page, *only, *clusters); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, page, only, clusters string) error {
	names, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	faults, err := readFaults("test/robustness/faults")
	if err != nil {
		return err
	}
	tree, err := os.MkdirTemp("", "robustness")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	if err := copyTree(ctx, tree); err != nil {
		return err
	}
	if clusters != "" {
		table, err := tryOnClusters(ctx, tree, clusters, page, faults, names)
		if table == nil {
			return err
		}
		return errors.Join(err, write(page, map[string][]string{"clusters": table}))
	}
	rows := map[string]string{} // by fault
	var missed []string
	passes := map[string]bool{} // packages whose suites pass without a fault
	for _, f := range faults {
		if !names.MatchString(f.name) {
			continue
		}
		if !passes[f.suites] {
			if err := pass(ctx, tree, f.suites); err != nil {
				return err
			}
			passes[f.suites] = true
		}
		found, err := try(ctx, tree, f)
		if err != nil {
			return err
		}
		row := fmt.Sprintf("| [%s](../../test/robustness/faults/%s.patch) | %s |", f.name, f.name, f.breaks)
		for _, column := range columns {
			row += " " + found[column].String() + " |"
		}
		fmt.Println(row)
		rows[f.name] = row
		if !found[f.noticed].noticed {
			missed = append(missed, fmt.Sprintf("%s is not noticed by %s", f.name, f.noticed))
		}
	}
	tables := map[string][]string{"faults": {"| fault | what it breaks | " + strings.Join(columns, " | ") + " |", "|---|---|" + strings.Repeat("---|", len(columns))}}
	if only == "" {
		if tables["searches"], err = countStates(ctx, tree); err != nil {
			return err
		}
	} else if err := keepRows(page, faults, rows); err != nil {
		return err
	}
	for _, f := range faults {
		tables["faults"] = append(tables["faults"], rows[f.name])
	}
	if err := write(page, tables); err != nil {
		return err
	}
	if len(missed) > 0 {
		return fmt.Errorf("the tests have holes:\n%s", strings.Join(missed, "\n"))
	}
	return nil
}

// readFaults reads the patches of a directory.
func readFaults(dir string) (faults []fault, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f := fault{name: strings.TrimSuffix(filepath.Base(path), ".patch"), path: path}
		header, diff, _ := strings.Cut(string(text), "\ndiff --git ")
		for _, line := range strings.Split(header, "\n") {
			key, value, _ := strings.Cut(line, ": ")
			switch key {
			case "breaks":
				f.breaks = value
			case "origin":
				f.origin = value
			case "noticed by":
				f.noticed = value
			}
		}
		file, _, _ := strings.Cut(strings.TrimPrefix(diff, "a/"), " ")
		f.in = filepath.Dir(file)
		if f.suites = f.in; strings.HasSuffix(file, "_1_37.go") {
			f.suites += of137
		}
		if f.breaks == "" || f.origin == "" || !slices.Contains(columns, f.noticed) || suites[f.suites] == nil {
			return nil, fmt.Errorf("%s: want the lines \"breaks: \", \"origin: \" and \"noticed by: \" with one of %q before the patch, and a package with suites; got %+v", path, columns, f)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

// copyTree copies the files that git knows or would add.
func copyTree(ctx context.Context, to string) error {
	list, err := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return fmt.Errorf("listing the repository: %w", err)
	}
	for _, name := range strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if err := copyFile(name, filepath.Join(to, name)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// outcome is that of a suite.
type outcome struct {
	ran, noticed bool
	// after how many seeds or states. Empty if the suite has neither.
	after string
}

func (o outcome) String() string {
	switch {
	case !o.ran:
		return "–"
	case !o.noticed:
		return "no"
	case o.after == "":
		return "**yes**"
	default:
		return "**yes**, " + o.after
	}
}

// try applies a fault, runs the suites of its package, and takes it back.
func try(ctx context.Context, tree string, f fault) (map[string]outcome, error) {
	path, err := filepath.Abs(f.path)
	if err != nil {
		return nil, err
	}
	if err := apply(ctx, tree, path); err != nil {
		return nil, err
	}
	found := map[string]outcome{}
	for _, s := range suites[f.suites] {
		build := exec.CommandContext(ctx, "go", append([]string{"test"}, append(slices.Clone(s.args), "-run=^$")...)...)
		build.Dir = tree
		if output, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the suite %q with fault %s: %w\n%s", s.args, f.name, err, output)
		}
		if found[s.name], err = runSuite(ctx, tree, s); err != nil {
			return nil, fmt.Errorf("fault %s: %w", f.name, err)
		}
	}
	return found, apply(ctx, tree, "-R", path)
}

// pass runs the suites of a package without a fault. A suite that fails all the same would seem to notice each fault.
func pass(ctx context.Context, tree, of string) error {
	for _, s := range suites[of] {
		if o, err := runSuite(ctx, tree, s); err != nil || o.noticed {
			return fmt.Errorf("%s of %s fail without a fault: %w", s.name, of, cmp.Or(err, errors.New("see go test "+strings.Join(s.args, " "))))
		}
	}
	return nil
}

func apply(ctx context.Context, tree string, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", append([]string{"apply"}, args...)...)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(tree))
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git apply %s: %w\n%s", strings.Join(args, " "), err, output)
	}
	return nil
}

var (
	seedFailed  = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)/seed_\d+ `)
	seedMessage = regexp.MustCompile(`seed (\d+)`)
	failedAfter = regexp.MustCompile(`\[rapid\] (?:failed|panic) after (\d+) tests`)
	stateNumber = regexp.MustCompile(`of (\d+) states`)
)

// runSuite runs a suite once. An error is not a failed test: the suite took too long, or there was none.
func runSuite(ctx context.Context, tree string, s suite) (outcome, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-v", "-failfast", "-timeout=10m"}, s.args...)...)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "RAPID_SHRINKTIME=1ms") // how long a history is does not matter here
	output, err := cmd.CombinedOutput()
	o := outcome{ran: true, noticed: err != nil}
	if bytes.Contains(output, []byte("panic: test timed out")) || bytes.Contains(output, []byte("no tests to run")) {
		return o, fmt.Errorf("go test %s: no result: %w\n%s", strings.Join(s.args, " "), err, output)
	}
	if states := stateNumber.FindSubmatch(output); states != nil {
		o.after = string(states[1]) + " states"
	} else if after := failedAfter.FindSubmatch(output); after != nil {
		n, _ := strconv.Atoi(string(after[1]))
		o.after = fmt.Sprintf("%d histories", n+1)
	} else if failed := seedFailed.FindSubmatch(output); failed != nil {
		o.after = fmt.Sprintf("%d seeds", strings.Count(string(output), "=== RUN   "+string(failed[1])+"/seed_"))
	} else if seed := seedMessage.FindSubmatch(output); seed != nil {
		n, _ := strconv.Atoi(string(seed[1]))
		o.after = fmt.Sprintf("%d seeds", n+1)
	}
	return o, nil
}

var (
	testRun     = regexp.MustCompile(`^=== RUN +(\S+)`)
	statesLog   = regexp.MustCompile(`(\d+) states, \d+ at rest, \d+ steps, (.*) moves, \S+$`)
	statesTable = []string{"| package | world | states | longest shortest history |", "|---|---|---|---|"}
)

// countStates runs the searches without a fault.
func countStates(ctx context.Context, tree string) ([]string, error) {
	table := slices.Clone(statesTable)
	for _, in := range searched {
		cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", searches, in)
		cmd.Dir = tree
		output, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("searching %s: %w\n%s", in, err, output)
		}
		var rows []string
		world := ""
		for _, line := range strings.Split(string(output), "\n") {
			if begins := testRun.FindStringSubmatch(line); begins != nil {
				_, world, _ = strings.Cut(begins[1], "/")
				world = strings.ReplaceAll(world, "_", " ")
			} else if log := statesLog.FindStringSubmatch(line); log != nil {
				_, longest, _ := strings.Cut(log[2], "up to ")
				if world == "" {
					world = "a take-over"
				}
				rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s moves |", strings.TrimPrefix(in, "./"), world, log[1], longest))
			}
		}
		slices.Sort(rows)
		table = append(table, rows...)
	}
	return table, nil
}

// keepRows adds the page's rows of the faults that were not tried.
func keepRows(page string, faults []fault, rows map[string]string) (err error) {
	for _, f := range faults {
		if rows[f.name] == "" {
			if rows[f.name], err = rowOf(page, "| ["+f.name+"]("); err != nil {
				return err
			}
		}
	}
	return nil
}

// rowOf is the row of the page that begins like this.
func rowOf(page, begin string) (string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, begin) {
			return strings.TrimSpace(line), nil
		}
	}
	return "", fmt.Errorf("%s has no row %q: try that fault, too", page, begin)
}

// write puts tables between the markers of a page, for example <!-- faults --> and <!-- end of faults -->.
func write(page string, tables map[string][]string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	for name, table := range tables {
		begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
		before, rest, found := strings.Cut(string(text), begin)
		_, after, ends := strings.Cut(rest, end)
		if !found || !ends {
			return fmt.Errorf("%s: want the markers %q and %q", page, strings.TrimSpace(begin), end)
		}
		text = []byte(before + begin + "\n" + strings.Join(table, "\n") + "\n\n" + end + after)
	}
	return os.WriteFile(page, text, 0o644)
}
