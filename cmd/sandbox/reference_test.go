package main

import (
	"testing"

	"github.com/berth-project/berth/test/reference"
)

func TestFlagsAreOnTheirPage(t *testing.T) {
	reference.Expect(t, "berth-sandbox", "How to begin: [tutorials](../tutorials/README.md#before-you-begin).", reference.Commands(newCommand())...)
}
