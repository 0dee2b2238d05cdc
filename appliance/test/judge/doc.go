// Package judge compares rulesets with package oracle: the outcome of a packet by the simulator of nft (nft/sim) with the outcomes
// that the oracle allows. It is for tests alone.
package judge
