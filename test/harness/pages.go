package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Commands are the blocks of bash commands in a section of a page below docs. It is an error if there are none.
func Commands(page, heading string) (string, error) {
	text, err := os.ReadFile(filepath.Join(Root(), "docs", page))
	if err != nil {
		return "", err
	}
	_, section, _ := strings.Cut(string(text), "\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```bash\n")[1:]
	if len(blocks) == 0 {
		return "", fmt.Errorf("docs/%s has no bash commands below %q", page, heading)
	}
	for i := range blocks {
		blocks[i], _, _ = strings.Cut(blocks[i], "```\n")
	}
	return strings.Join(blocks, "\n"), nil
}
