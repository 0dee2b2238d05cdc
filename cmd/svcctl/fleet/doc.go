// Package fleet has the verb fleet with its words: etcd, the sources and the rollouts of a fleet.
package fleet
