// Package tenant lets a hostile tenant work beside another one, and measures what the other one notices. The hostile tenant has the cluster's role edit in
// namespaces of its own, with what Berth adds to that role, and nothing else.
//
// What the test judges is the difference that Berth makes. Any tenant who floods an API server slows it for all others, with or without Berth. So the tenant
// also floods it with what Berth has no part in: as many requests of the same sizes, in the same order, in as many namespaces without spreads and budgets. Objects
// of Berth's kinds become ConfigMaps there, and Berth's labels and annotations get other names. The test compares the other tenant's latencies during the
// attack with those during this equal flood, and also reports those without any flood. It measures in the order quiet, flood, attack, flood, quiet, so
// that a machine which gets busier or idler over minutes favours nobody.
//
// Begin reading at TestAHostileTenantSlowsNobodyElse. The attacks are in attack_test.go, the other tenant is in neighbour_test.go.
package tenant
