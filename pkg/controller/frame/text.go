package frame

import "unicode/utf8"

const (
	// LongestNote of an event, and LongestMessage of a condition, are what the API server accepts, in bytes.
	LongestNote, LongestMessage = 1024, 32768
)

// AtMost cuts a text to a number of bytes, between characters.
func AtMost(bytes int, text string) string {
	if len(text) <= bytes {
		return text
	}
	const ellipsis = "..."
	end := bytes - len(ellipsis)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}
