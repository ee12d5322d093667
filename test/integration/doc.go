// Package integration runs Berth on a real control plane: the scenarios of test/scenarios with the tables that the model gives them too, and
// what only a real API server, real controllers and real processes can show. One sandbox serves all tests; each works in a namespace of
// its own. A checker watches the API all the while, and no test may leave a violation behind.
package integration
