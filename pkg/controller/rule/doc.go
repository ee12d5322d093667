// Package rule makes the spreads of workloads that SpreadRules and ClusterSpreadRules pick, and says at each rule what it does.
//
// The maker looks at one namespace at a time (make.go): which workload should have which spread, and which has it. It changes spreads that rules have made, and no others. The reporter
// writes the status of one rule at a time (report.go). pkg/rules decides which rule counts.
package rule
