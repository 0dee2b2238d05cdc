// Package forecast describes a change of the ruleset before it is made: in nft's terms, as the elements, sets and chains that
// come, go and change, and in words, as the frontends and endpoints of Services that begin, end and change.
package forecast
