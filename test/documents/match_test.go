package documents

import (
	"regexp"
	"slices"
	"strings"
)

const ellipsis = "…"

// generated are the characters that Kubernetes uses in generated names.
const generated = "[bcdfghjklmnpqrstvwxz2456789]"

var ignored = []struct {
	what *regexp.Regexp
	with string
}{
	// Names come first, because a part of a name may look like an age.
	{regexp.MustCompile(`-` + generated + `{7,10}-` + generated + `{5}\b`), "-<generated>"},
	{regexp.MustCompile(`-` + generated + `{5}\b`), "-<generated>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "<time>"},
	// This matches an age or a duration. Minutes alone have two digits at most, so 500m of CPU does not match.
	{regexp.MustCompile(`\b(\d+d)?(\d+h)?(\d+m)?\d+(\.\d+)?(ms|s)\b|\b\d+h\d*m?\b|\b\d+d\d*h?\b|\b\d{1,2}m\b`), "<age>"},
	{regexp.MustCompile(`\b(127\.0\.0\.1|localhost):\d+`), "<address>"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// normalise replaces the parts of a line that may differ from run to run.
func normalise(line string) string {
	for _, ignore := range ignored {
		line = ignore.what.ReplaceAllString(line, ignore.with)
	}
	return strings.TrimSpace(line)
}

// matches is true if the output is as the document shows.
func matches(shown, printed []string) bool {
	if len(shown) == 0 {
		return true
	}
	return matchLines(normaliseAll(shown), normaliseAll(printed))
}

func normaliseAll(lines []string) []string {
	all := make([]string, 0, len(lines))
	for _, line := range lines {
		all = append(all, normalise(line))
	}
	for len(all) > 0 && all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

func matchLines(shown, printed []string) bool {
	switch {
	case len(shown) == 0:
		return len(printed) == 0
	case shown[0] == ellipsis:
		return matchLines(shown[1:], printed) || len(printed) > 0 && matchLines(shown, printed[1:])
	case len(printed) == 0:
		return false
	default:
		return matchLine(shown[0], printed[0]) && matchLines(shown[1:], printed[1:])
	}
}

func matchLine(shown, printed string) bool {
	if !strings.Contains(shown, ellipsis) {
		return shown == printed
	}
	parts := strings.Split(shown, ellipsis)
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(printed)
}

// fails is true if the document shows that the command is refused.
func fails(shown []string) bool {
	return slices.ContainsFunc(shown, func(line string) bool {
		for _, prefix := range []string{"error:", "error when ", "Error from server", "The WorkloadSpread "} {
			if strings.HasPrefix(line, prefix) {
				return true
			}
		}
		return false
	})
}

// reading matches commands that change nothing. The test can repeat them until they print the shown output.
var reading = regexp.MustCompile(`^(bin/)?(kubectl ((-n|--context) \S+ )*(get|describe|top|logs|auth can-i|berth (status|explain|simulate))|berth-descheduler .*-dry-run|berth-sandbox status|curl)\b`)

// reads is true if a command changes nothing.
func reads(text string) bool {
	return reading.MatchString(text) && !strings.Contains(text, "&")
}
