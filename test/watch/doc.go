// Package watch lets components of Berth see the past: each reaches the API server through a proxy (harness.Timeline) whose caches are late, that skips events, forgets revisions, and kills the
// component right after a write. Watchers with their own arithmetic check each revision, and everything must come to rest as it should be. docs/robustness.md says more.
package watch
