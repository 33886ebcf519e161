"""Laws of exchange compared over drawn networks in virtual time: prototypes, not the product."""
