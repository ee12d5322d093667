// Package members tests the members of a federation on real control planes, with faults between the hub and each of them.
package members
