// Package integration runs Berth on a real control plane. It plays the scenarios of test/scenarios. It also tests what only a real API server, real
// controllers and real processes can show.
//
// All tests share one sandbox. Each test works in its own namespace. A checker watches the API during all tests, and no test may cause a violation.
package integration
