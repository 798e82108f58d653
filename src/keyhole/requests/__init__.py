"""How does a request of a page or an agent become a record, who does the work, and what is kept between requests?"""
