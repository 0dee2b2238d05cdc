// Package dns asks resolvers for A, AAAA and SRV records, again when their time to live is over.
//
// A name that begins with _ is one of SRV records. NXDOMAIN and an answer without records of the type are empty answers; SERVFAIL,
// REFUSED, a referral, and an answer that was cut and that TCP did not bring either are failures. An answer has both families of all
// targets, or it is none.
package dns
